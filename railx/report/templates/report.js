"use strict";
// Filter by paper, verdict and fidelity; the state stands in the address behind #.
(() => {
  const form = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const unfold = document.getElementById("unfold");
  const keys = ["paper", "verdict", "fidelity"];
  const groups = [...document.querySelectorAll("[data-group]")];
  const claimGroups = [...document.querySelectorAll(".claims-group")];
  const parts = [...document.querySelectorAll("[data-paper-part]")];

  const state = () => Object.fromEntries(keys.map((key) => [key, form.elements[key].value]));

  // What an address holds: a filter has "=", the name of a place has none.
  const fromAddress = () => {
    const text = location.hash.slice(1);
    return text.includes("=") ? new URLSearchParams(text) : null;
  };

  // A count leads to the claims that it counts, and a command can be copied.
  const decorate = (part) => {
    for (const cell of part.querySelectorAll("[data-filter]")) {
      const link = document.createElement("a");
      link.href = `#${cell.dataset.filter}`;
      link.textContent = cell.textContent;
      cell.replaceChildren(link);
    }

    for (const command of part.querySelectorAll("pre.command")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(command.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(command);
          button.textContent = "Selected";
        }
      });
      command.before(button);
    }
  };

  // What is folded stands in the page as text, and becomes a part of it when it is opened.
  const fill = (details) => {
    const folded = details.querySelector(":scope > noscript");
    if (!folded) return;
    const text = document.createElement("template");
    text.innerHTML = folded.textContent;
    decorate(text.content);
    folded.replaceWith(text.content);
  };
  const fillAll = (selector) => {
    for (const details of document.querySelectorAll(selector)) fill(details);
  };
  document.addEventListener("toggle", (event) => fill(event.target), true);
  window.addEventListener("beforeprint", () => fillAll("details"));

  // The folded text that holds a place is filled in, from the outside in.
  const placeOf = (name) => {
    let place = document.getElementById(name);
    for (const folded of place ? [] : document.querySelectorAll("details > noscript")) {
      if (!folded.textContent.includes(`id="${name}"`)) continue;
      fill(folded.parentElement);
      place = document.getElementById(name);
      break;
    }
    return place;
  };

  let filtered = false;
  const apply = () => {
    const wanted = state();
    const any = keys.some((key) => wanted[key]);
    if (any) for (const group of claimGroups) fill(group);
    const claims = [...document.querySelectorAll("[data-claim]")];
    const fits = (element) => keys.every((key) => !wanted[key] || element.dataset[key] === wanted[key]);
    for (const element of claims) element.hidden = !fits(element);
    const narrow = Boolean(wanted.verdict || wanted.fidelity);
    document.body.classList.toggle("narrow", narrow);
    const empty = (element) => {
      const own = [...element.querySelectorAll("[data-claim]")];
      return own.length > 0 && own.every((claim) => claim.hidden);
    };
    for (const group of groups) group.hidden = empty(group);
    for (const part of parts) {
      const away = Boolean(wanted.paper) && part.dataset.paperPart !== wanted.paper;
      part.hidden = away || (narrow && empty(part));
    }
    for (const group of claimGroups) {
      group.hidden = empty(group);
      // A filter unfolds the lists that it leaves.
      if (any) group.open = !group.hidden;
      else if (filtered && !any) group.open = group.hasAttribute("data-open");
    }
    filtered = any;
    const all = Number(form.dataset.count);
    const left = any ? [...document.querySelectorAll(".claim")].filter((row) => !row.hidden).length : all;
    shown.value = left === all ? `${all} claims` : `${left} of ${all}`;
  };

  const changed = () => {
    const text = new URLSearchParams(Object.entries(state()).filter(([, value]) => value)).toString();
    history.replaceState(null, "", `#${text}`);
    apply();
  };

  const clear = () => {
    for (const key of keys) form.elements[key].value = "";
  };

  // A place that the filter hides, or that is folded, is shown when somebody goes there.
  const goTo = () => {
    const place = placeOf(decodeURIComponent(location.hash.slice(1)));
    if (!place) return;
    if (place.closest("[hidden], .narrow #overview, .narrow .beside")) {
      clear();
      apply();
    }
    for (let one = place; one; one = one.parentElement) {
      if (one.tagName === "DETAILS") one.open = true;
      else if (one.tagName === "FIGURE") one.firstElementChild.open = true;
    }
    place.scrollIntoView();
  };

  const follow = () => {
    const found = fromAddress();
    if (found === null) return goTo();
    for (const key of keys) {
      const select = form.elements[key];
      select.value = found.get(key) || "";
      if (select.selectedIndex < 0) select.value = "";
    }
    apply();
  };

  form.addEventListener("change", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    clear();
    changed();
  });
  unfold.addEventListener("click", () => {
    const open = unfold.getAttribute("aria-pressed") !== "true";
    unfold.setAttribute("aria-pressed", String(open));
    unfold.textContent = open ? "Fold all" : "Unfold all";
    for (const group of claimGroups) {
      fill(group);
      group.open = open || group.hasAttribute("data-open");
    }
    for (const row of document.querySelectorAll(".claim")) row.open = open;
  });
  window.addEventListener("hashchange", follow);

  decorate(document);
  form.hidden = false;
  follow();
  if (fromAddress() === null) apply();
})();
