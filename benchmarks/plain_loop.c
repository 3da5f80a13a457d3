/*
 * The plain loop that the probe's figures are compared with: cuMemcpyPeerAsync over 256 MiB, twenty times between two events, the median of
 * three; another size in MiB may be given. It needs a C compiler and the driver's libcuda.so.1, no toolkit. Prints one line of JSON: {"0->1": GB/s, ...}.
 *
 *     cc -O2 -o plain_loop plain_loop.c -ldl && ./plain_loop
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LOOPS 20
#define REPEATS 3
#define MOST 64

typedef void *Handle;
typedef struct { Handle context, stream, start, end; uint64_t source, target; } Gpu;

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) { fprintf(stderr, "libcuda has no %s\n", name); exit(2); }
    return found;
}

static void must(int code, const char *what)
{
    if (code) { fprintf(stderr, "%s: CUDA error %d\n", what, code); exit(3); }
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int arguments, char **argument)
{
    size_t size = (size_t)(arguments > 1 ? atoi(argument[1]) : 256) << 20;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    int (*init)(unsigned) = function("cuInit"), (*count_devices)(int *) = function("cuDeviceGetCount");
    int (*get)(int *, int) = function("cuDeviceGet"), (*retain)(Handle *, int) = function("cuDevicePrimaryCtxRetain");
    int (*use)(Handle) = function("cuCtxSetCurrent"), (*enable)(Handle, unsigned) = function("cuCtxEnablePeerAccess");
    int (*allocate)(uint64_t *, size_t) = function("cuMemAlloc_v2"), (*stream)(Handle *, unsigned) = function("cuStreamCreate");
    int (*event)(Handle *, unsigned) = function("cuEventCreate"), (*record)(Handle, Handle) = function("cuEventRecord");
    int (*wait)(Handle) = function("cuStreamSynchronize"), (*elapsed)(float *, Handle, Handle) = function("cuEventElapsedTime");
    int (*copy)(uint64_t, Handle, uint64_t, Handle, size_t, Handle) = function("cuMemcpyPeerAsync");
    Gpu gpus[MOST];
    int count = 0, first = 1;

    must(init(0), "cuInit");
    must(count_devices(&count), "cuDeviceGetCount");
    if (count > MOST) count = MOST;
    for (int i = 0; i < count; i++) {
        int device;
        must(get(&device, i), "cuDeviceGet");
        must(retain(&gpus[i].context, device), "cuDevicePrimaryCtxRetain");
        must(use(gpus[i].context), "cuCtxSetCurrent");
        must(stream(&gpus[i].stream, 1), "cuStreamCreate");
        must(event(&gpus[i].start, 0), "cuEventCreate");
        must(event(&gpus[i].end, 0), "cuEventCreate");
        must(allocate(&gpus[i].source, size), "cuMemAlloc");
        must(allocate(&gpus[i].target, size), "cuMemAlloc");
    }
    printf("{");
    for (int one = 0; one < count; one++)
        for (int other = 0; other < count; other++) {
            double rates[REPEATS + 1];
            if (one == other && count > 1) continue; /* one GPU copies within itself, as the probe's loopback does */
            must(use(gpus[one].context), "cuCtxSetCurrent");
            if (one != other) {
                int code = enable(gpus[other].context, 0);
                if (code && code != 704) fprintf(stderr, "%d->%d: no peer access (%d)\n", one, other, code);
            }
            for (int repeat = 0; repeat <= REPEATS; repeat++) {
                float ms;
                must(record(gpus[one].start, gpus[one].stream), "cuEventRecord");
                for (int loop = 0; loop < LOOPS; loop++)
                    must(copy(gpus[other].target, gpus[other].context, gpus[one].source, gpus[one].context, size, gpus[one].stream), "cuMemcpyPeerAsync");
                must(record(gpus[one].end, gpus[one].stream), "cuEventRecord");
                must(wait(gpus[one].stream), "cuStreamSynchronize");
                must(elapsed(&ms, gpus[one].start, gpus[one].end), "cuEventElapsedTime");
                rates[repeat] = (double)LOOPS * size / ms / 1e6;
            }
            qsort(rates + 1, REPEATS, sizeof *rates, compare);
            printf("%s\"%d->%d\": %.2f", first ? "" : ", ", one, other, rates[1 + REPEATS / 2]);
            first = 0;
        }
    printf("}\n");
    return 0;
}
