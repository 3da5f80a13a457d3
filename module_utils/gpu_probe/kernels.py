"""The probe's GPU code as PTX text, which the driver itself compiles: no toolkit is needed on the host.

Target sm_50 and PTX 6.0, so that every GPU which a current driver serves takes it. Volatile accesses and `membar.sys`
have system
scope: another GPU, and the copy engine, see them.

========  ==============================================
=====================================================================
kernel    parameters                                      does
========  ==============================================
=====================================================================
copy16    u64 to, u64 from, u64 count                     `count` vectors of 16 bytes; both addresses 16-byte aligned
copy1     u64 to, u64 from, u64 count                     `count` bytes, any address
ping      u64 mine, u64 theirs, u32 serves, u32 warm,     one thread bounces a counter with the other GPU's `ping`:
writes `theirs`,
          u32 count, u64 limit_ns, u64 out                waits on `mine`. out[0] 1 = done, 2 = no answer within
          limit_ns;
                                                          out[1] ns of the `count` trips after `warm` ones; out[2] trips
                                                          done
delay     u64 ns                                          keeps its stream busy, so that what is queued behind it runs
back to back
========  ==============================================
=====================================================================
"""

from __future__ import annotations

_HEADER = """.version 6.0
.target sm_50
.address_size 64
"""

# Grid-stride loops: any grid copies everything.
_COPY = """
.visible .entry %(name)s(.param .u64 p_to, .param .u64 p_from, .param .u64 p_count)
{
    .reg .pred %%p<2>;
    .reg .b16 %%h<2>;
    .reg .b32 %%r<10>;
    .reg .b64 %%rd<10>;
    ld.param.u64 %%rd1, [p_to];
    ld.param.u64 %%rd2, [p_from];
    ld.param.u64 %%rd3, [p_count];
    mov.u32 %%r1, %%ctaid.x;
    mov.u32 %%r2, %%ntid.x;
    mov.u32 %%r3, %%tid.x;
    mov.u32 %%r4, %%nctaid.x;
    mul.wide.u32 %%rd4, %%r1, %%r2;
    cvt.u64.u32 %%rd5, %%r3;
    add.u64 %%rd4, %%rd4, %%rd5;
    mul.wide.u32 %%rd5, %%r4, %%r2;
again:
    setp.ge.u64 %%p1, %%rd4, %%rd3;
    @%%p1 bra done;
    shl.b64 %%rd6, %%rd4, %(shift)d;
    add.u64 %%rd7, %%rd2, %%rd6;
    add.u64 %%rd8, %%rd1, %%rd6;
    %(load)s
    %(store)s
    add.u64 %%rd4, %%rd4, %%rd5;
    bra again;
done:
    membar.sys;
    ret;
}
"""

_COPY16 = _COPY % {
    "name": "copy16",
    "shift": 4,
    "load": "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd7];",
    "store": "st.global.v4.u32 [%rd8], {%r5, %r6, %r7, %r8};",
}
_COPY1 = _COPY % {
    "name": "copy1",
    "shift": 0,
    "load": "ld.global.u8 %h1, [%rd7];",
    "store": "st.global.u8 [%rd8], %h1;",
}

# The clock is looked at only every 1024 polls: it is slower than the flag.
_PING = """
.visible .entry ping(.param .u64 p_mine, .param .u64 p_theirs, .param .u32 p_serves, .param .u32 p_warm,
                     .param .u32 p_count, .param .u64 p_limit, .param .u64 p_out)
{
    .reg .pred %p<8>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<14>;
    ld.param.u64 %rd1, [p_mine];
    ld.param.u64 %rd2, [p_theirs];
    ld.param.u32 %r1, [p_serves];
    ld.param.u32 %r2, [p_warm];
    ld.param.u32 %r3, [p_count];
    ld.param.u64 %rd3, [p_limit];
    ld.param.u64 %rd4, [p_out];
    add.u32 %r4, %r2, %r3;
    mov.u64 %rd5, %globaltimer;
    add.u64 %rd6, %rd5, %rd3;
    mov.u64 %rd7, %rd5;
    mov.u32 %r5, 0;
    mov.u64 %rd9, 1;
    setp.ne.u32 %p1, %r1, 0;
trip:
    setp.ge.u32 %p2, %r5, %r4;
    @%p2 bra report;
    setp.ne.u32 %p3, %r5, %r2;
    @%p3 bra timed;
    mov.u64 %rd7, %globaltimer;
timed:
    add.u32 %r6, %r5, 1;
    @!%p1 bra await;
    st.volatile.global.u32 [%rd2], %r6;
await:
    mov.u32 %r7, 0;
poll:
    ld.volatile.global.u32 %r8, [%rd1];
    setp.ge.u32 %p4, %r8, %r6;
    @%p4 bra arrived;
    add.u32 %r7, %r7, 1;
    and.b32 %r9, %r7, 1023;
    setp.ne.u32 %p5, %r9, 0;
    @%p5 bra poll;
    mov.u64 %rd8, %globaltimer;
    setp.lt.u64 %p6, %rd8, %rd6;
    @%p6 bra poll;
    mov.u64 %rd9, 2;
    bra report;
arrived:
    @%p1 bra next;
    st.volatile.global.u32 [%rd2], %r6;
next:
    mov.u32 %r5, %r6;
    bra trip;
report:
    mov.u64 %rd8, %globaltimer;
    sub.u64 %rd10, %rd8, %rd7;
    cvt.u64.u32 %rd11, %r5;
    st.volatile.global.u64 [%rd4], %rd9;
    st.volatile.global.u64 [%rd4+8], %rd10;
    st.volatile.global.u64 [%rd4+16], %rd11;
    membar.sys;
    ret;
}
"""

_DELAY = """
.visible .entry delay(.param .u64 p_ns)
{
    .reg .pred %p<3>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [p_ns];
    mov.u64 %rd2, %globaltimer;
    add.u64 %rd2, %rd2, %rd1;
    mov.u32 %r1, 0;
spin:
    add.u32 %r1, %r1, 1;
    setp.gt.u32 %p1, %r1, 100000000;
    @%p1 bra over;
    mov.u64 %rd3, %globaltimer;
    setp.lt.u64 %p2, %rd3, %rd2;
    @%p2 bra spin;
over:
    ret;
}
"""

PTX = _HEADER + _COPY16 + _COPY1 + _PING + _DELAY
NAMES = ("copy16", "copy1", "ping", "delay")
