// A box that filters the hosts and the causes of a fleet. Without scripts the page lacks nothing else.
const numbersOf = (text) => new Set((text || "").split(",").filter(Boolean).flatMap((range) => {
  const [first, last] = range.split("-").map(Number);
  return Array.from({ length: (last ?? first) - first + 1 }, (_none, place) => first + place);
}));
const hostRows = [...document.querySelectorAll("tr[data-host]")]
  .map((row) => ({ row, number: Number(row.dataset.host), text: row.textContent.toLowerCase() }));
const causes = [...document.querySelectorAll("[data-hosts]")]
  .map((element) => ({ element, hosts: numbersOf(element.dataset.hosts), text: element.textContent.toLowerCase() }));
const folds = [...document.querySelectorAll("details.ready")];
const opened = folds.map((fold) => fold.open);
const place = document.querySelector("#filter");
const box = document.createElement("input");
const said = document.createElement("span");
const showAll = document.createElement("button");

function show(wanted, words) {
  const matching = new Set();
  for (const { row, number, text } of hostRows) {
    row.hidden = !wanted(number, text);
    if (!row.hidden) matching.add(number);
  }
  let shown = 0;
  for (const { element, hosts, text } of causes) {
    element.hidden = Boolean(words) && !text.includes(words) && ![...hosts].some((number) => matching.has(number));
    if (!element.hidden && element.tagName === "ARTICLE") shown += 1;
  }
  folds.forEach((fold, index) => {
    const found = [...fold.querySelectorAll("tr[data-host]")].some((row) => !row.hidden);
    fold.hidden = !found;
    fold.open = matching.size < hostRows.length ? found : opened[index];
  });
  const all = matching.size === hostRows.length && !words;
  said.textContent = all ? "" : `${matching.size} of ${hostRows.length} hosts` + (causes.length ? `, ${shown} findings` : "");
  showAll.hidden = all;
}

if (place && hostRows.length) {
  box.type = "search";
  box.placeholder = causes.length ? "Filter: a host, a check, a word" : "Filter the hosts";
  box.setAttribute("aria-label", "Filter hosts and findings");
  said.setAttribute("role", "status");
  showAll.type = "button";
  showAll.textContent = "Show all";
  showAll.hidden = true;
  showAll.addEventListener("click", () => { box.value = ""; show(() => true, ""); });
  box.addEventListener("input", () => {
    const words = box.value.trim().toLowerCase();
    show((_number, text) => text.includes(words), words);
  });
  place.append(box, showAll, said);
  for (const { element, hosts } of causes) {
    if (element.tagName !== "ARTICLE" || hosts.size <= 12) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "only";
    button.textContent = `Show these ${hosts.size} hosts in the table`;
    button.addEventListener("click", () => {
      box.value = "";
      show((number) => hosts.has(number), "");
      document.querySelector("#summary").scrollIntoView();
    });
    element.querySelector("dd").append(button);
  }
}
