"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const input = (id) => document.getElementById(id);
const value = (id) => Number(input(id).value);
const digits = (x, n = 3) => Number(x.toPrecision(n)).toLocaleString("en");
const prices = Object.fromEntries(data.points.flatMap((p) => Object.entries(p.parts)).map(([name, [, usd]]) => [name, usd]));
let chosen = null;

function between(xs, ys, x) {
  let i = 1;
  while (i < xs.length - 1 && xs[i] < x) i += 1;
  const share = (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
  return ys[i - 1] + share * (ys[i] - ys[i - 1]);
}

function asked() {
  const gpus = data.gpus[value("gpus")];
  const factor = Object.fromEntries(data.components.map((name) => [name, 2 ** value(name)]));
  return { gpus, factor, budget: 10 ** value("budget"), faults: value("faults") / 100 };
}

function priced(ask) {
  return data.points.filter((p) => p.gpus === ask.gpus).map((p) => {
    let usd = 0;
    for (const [name, [count, price]] of Object.entries(p.parts)) usd += count * price * ask.factor[name];
    return { ...p, usd, usd_chip: usd / p.chips, usable: between(data.rates, p.usable, ask.faults) };
  });
}

const values = (p) => [p.step_s, p.usd, p.watts ?? Infinity, -p.usable];

function beats(a, b) {
  const [x, y] = [values(a), values(b)];
  return x.every((v, i) => v <= y[i]) && x.some((v, i) => v < y[i]);
}

function split(points, budget) {
  const allowed = points.filter((p) => p.usd <= budget).sort((a, b) => a.step_s - b.step_s);
  return { allowed, front: allowed.filter((p) => !allowed.some((q) => beats(q, p))) };
}

function element(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, v] of Object.entries(attributes)) made.setAttribute(key, v);
  made.textContent = text;
  return made;
}

function draw(allowed, front) {
  const host = input("plot");
  host.replaceChildren();
  if (!allowed.length) return;
  const width = Math.max(300, host.clientWidth), height = Math.min(460, Math.max(300, width * 0.55));
  const [left, right, top, bottom] = [62, 16, 14, 44];
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Cost against step time" });
  const xs = allowed.map((p) => p.step_s), ys = allowed.map((p) => Math.log10(p.usd_chip));
  const [x0, x1] = [Math.min(...xs) * 0.96, Math.max(...xs) * 1.06];
  const [y0, y1] = [Math.min(...ys) - 0.12, Math.max(...ys) + 0.12];
  const x = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right);
  const y = (v) => height - bottom - ((Math.log10(v) - y0) / (y1 - y0)) * (height - top - bottom);
  for (let k = Math.floor(y0); k <= y1; k += 1) {
    for (const m of [1, 2, 5]) {
      const v = m * 10 ** k;
      if (Math.log10(v) < y0 || Math.log10(v) > y1) continue;
      svg.append(element("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), class: "axis" }));
      svg.append(element("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, digits(v)));
    }
  }
  const apart = (x1 - x0) / Math.max(2, Math.floor(width / 80)), power = 10 ** Math.floor(Math.log10(apart));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= apart);
  for (let i = Math.ceil(x0 / step); i * step <= x1; i += 1) {
    const v = i * step;
    svg.append(element("text", { x: x(v), y: height - bottom + 18, "text-anchor": "middle" }, digits(v)));
  }
  svg.append(element("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, "Step (s)"));
  svg.append(element("text", { x: 2, y: 11 }, "USD a chip"));
  let cheapest = Infinity, path = "";
  for (const p of front) {
    if (p.usd_chip >= cheapest) continue;
    path += path ? `H${x(p.step_s)}V${y(p.usd_chip)}` : `M${x(p.step_s)},${y(p.usd_chip)}`;
    cheapest = p.usd_chip;
  }
  svg.append(element("path", { d: path, class: "line" }));
  const taken = [];
  for (const p of [...allowed].reverse()) {
    const on = front.includes(p), colour = `var(--${on ? "front" : "beaten"})`;
    const [cx, cy] = [x(p.step_s), y(p.usd_chip)];
    svg.append(element("line", { x1: x(Math.max(x0, p.low_s)), x2: x(Math.min(x1, p.high_s)), y1: cy, y2: cy, stroke: colour }));
    const dot = element("circle", { cx, cy, r: 6, stroke: colour, fill: on ? colour : "var(--page)", tabindex: 0, "data-network": p.network });
    dot.append(element("title", {}, p.network));
    dot.addEventListener("click", () => show(p, front));
    dot.addEventListener("focus", () => show(p, front));
    svg.append(dot);
  }
  for (const p of front) {
    const [cx, cy] = [x(p.step_s), y(p.usd_chip)];
    if (taken.some(([a, b]) => Math.abs(b - cy) < 14 && Math.abs(a - cx) < 90)) continue;
    const end = cx > width * 0.6;
    svg.append(element("text", { x: cx + (end ? -10 : 10), y: cy - 9, "text-anchor": end ? "end" : "start" }, p.network));
    taken.push([cx, cy]);
  }
  host.append(svg);
}

function reason(p, front) {
  const at = front.indexOf(p);
  if (at < 0) {
    const better = front.find((q) => beats(q, p));
    return `Not on the front: ${better.network} is no worse in all four and better in at least one.`;
  }
  const words = ["step time", "dollars", "watts", "usable share"];
  const others = words.map((_, i) => front.map((q) => values(q)[i] - values(p)[i]));
  const best = words.filter((_, i) => others[i].every((d) => d >= 0) && others[i].some((d) => d > 0));
  const first = best.length ? `On the front, first by ${best.join(", ")}.` : "On the front: no network is better in all four.";
  const other = front[at - 1] ?? front[at + 1];
  if (!other) return first;
  const change = (to, from) => (to === null || from === null ? "unknown" : `${to < from ? "−" : "+"}${digits(Math.abs(100 * (to / from - 1)), 2)} %`);
  const keys = ["step_s", "usd", "watts", "usable"];
  return `${first} ${other.network} instead: ${keys.map((key, i) => `${words[i]} ${change(other[key], p[key])}`).join(", ")}.`;
}

function show(p, front) {
  chosen = p.network;
  const lines = [
    `${p.network} (${p.family}, ${p.chips} chips): step ${digits(p.step_s, 4)} s, ${digits(p.usd / 1e6)} M USD, ${digits(p.usd_chip)} USD a chip, ${(100 * p.usable).toFixed(1)} % usable.`,
    reason(p, front),
    `Setting: ${p.setting}.`,
    `Plan: ${p.plan}. Binds: ${p.binds}. All-to-all ${digits(p.all_to_all_gb_s)} of ${digits(p.injection_gb_s)} GB/s.`,
    p.notes && `Note: ${p.notes}.`,
  ];
  input("reason").replaceChildren(...lines.filter(Boolean).map((line) => Object.assign(document.createElement("p"), { textContent: line })));
}

function cells(p) {
  const row = document.createElement("tr");
  const texts = [p.network, p.step_s.toFixed(3), p.usd_chip.toFixed(0), p.watts === null ? "" : (p.watts / p.chips).toFixed(0), `${(100 * p.usable).toFixed(1)} %`, p.binds];
  texts.forEach((text, i) => {
    const cell = row.insertCell();
    cell.textContent = text;
    if (i > 0 && i < 5) cell.className = "n";
  });
  return row;
}

function update() {
  const ask = asked();
  input("gpus_shown").textContent = ask.gpus.toLocaleString("en");
  input("budget_shown").textContent = `${digits(ask.budget / 1e6)} M USD`;
  input("faults_shown").textContent = `${digits(100 * ask.faults)} %`;
  for (const name of data.components) input(`${name}_shown`).textContent = `${digits(prices[name] * ask.factor[name])} USD`;
  const points = priced(ask), { allowed, front } = split(points, ask.budget);
  const cheapest = points.reduce((a, b) => (b.usd < a.usd ? b : a));
  input("summary").textContent = front.length
    ? `${front.length} of ${points.length} networks are on the front, ${points.length - allowed.length} over the budget; the fastest is ${front[0].network} with ${digits(front[0].step_s, 4)} s.`
    : `This budget buys nothing; the nearest that works is ${cheapest.network} for ${digits(cheapest.usd / 1e6)} M USD.`;
  draw(allowed, front);
  input("front").replaceChildren(...front.map(cells));
  const shown = allowed.find((p) => p.network === chosen) ?? front[0];
  if (shown) show(shown, front);
  else input("reason").replaceChildren();
}

input("form").addEventListener("input", update);
input("form").addEventListener("reset", () => setTimeout(update));
addEventListener("resize", update);
update();
