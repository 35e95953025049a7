// Line charts as SVG: nearest point under the pointer or by arrow keys, its words in one tip.
const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children; texts become text nodes, so nothing in the data is ever read as markup.
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "title"].includes(name);
  const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// matplotlib's markers, around 0, as labels.py names them
const MARKERS = (() => {
  const polygon = (corners, turn = 0, radius = 1, inner = 1) => {
    const n = inner === 1 ? corners : 2 * corners;
    const at = (i) => {
      const r = radius * (i % 2 ? inner : 1), angle = turn - Math.PI / 2 + (2 * Math.PI * i) / n;
      return `${(r * Math.cos(angle)).toFixed(3)} ${(r * Math.sin(angle)).toFixed(3)}`;
    };
    return `M${Array.from({ length: n }, (_, i) => at(i)).join("L")}Z`;
  };
  const plus = "M-.35 -1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z";
  return {
    o: "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z", v: polygon(3, Math.PI), "^": polygon(3), "<": polygon(3, -Math.PI / 2),
    ">": polygon(3, Math.PI / 2), P: plus, s: polygon(4, Math.PI / 4, 1.25), D: polygon(4, 0, 1.25), p: polygon(5),
    X: "M-1 -.5L-.5 -1L0 -.5L.5 -1L1 -.5L.5 0L1 .5L.5 1L0 .5L-.5 1L-1 .5L-.5 0Z", h: polygon(6),
    d: "M0 -1.2L.7 0L0 1.2L-.7 0Z", "*": polygon(5, 0, 1.35, 0.4), 8: polygon(8), H: polygon(6, Math.PI / 6),
    "4,1,0": polygon(4, 0, 1.4, 0.5), "5,0,180": polygon(5, Math.PI), "6,1,0": polygon(6, 0, 1.4, 0.5),
    "4,1,45": polygon(4, Math.PI / 4, 1.4, 0.5),
  };
})();

function marker(look, x, y, size) {
  const place = `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})`;
  return make("path", { d: MARKERS[look.marker] || MARKERS.o, transform: place, fill: look.colour, stroke: "#fff",
    "stroke-width": 0.2 });
}

function dashes(look, width) {
  return look.dash && look.dash.length ? look.dash.map((d) => d * width).join(" ") : null;
}

function swatch(look) {
  const line = make("line", { x1: 1, x2: 35, y1: 8, y2: 8, stroke: look.colour, "stroke-width": 2,
    "stroke-dasharray": dashes(look, 2) });
  return make("svg", { width: 36, height: 16, "aria-hidden": "true" }, line, marker(look, 18, 8, 4));
}

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw - 1e-12);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) out.push(i * step);
  return out;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return String(+value.toPrecision(3));
}

const tip = {
  show(text, x, y) {
    const box = document.getElementById("tip");
    box.textContent = text;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
    box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

// spec: {label, xLabel, series: [{look, points: [{x, y, low, high, text}], width, opacity, marks, band}], yRange, percent,
// target, now, pick(x)}; drawn as wide as its place is, and again when that changes.
const watchers = new WeakMap();
function chart(place, spec, height) {
  const draw = () => {
    const width = Math.max(220, place.clientWidth || 320);
    place.replaceChildren(new Plot(spec, width, height).svg);
  };
  draw();
  let last = place.clientWidth;
  watchers.get(place)?.disconnect(); // what was drawn here before
  watchers.set(place, new ResizeObserver(() => {
    if (place.clientWidth && Math.abs(place.clientWidth - last) > 1) { last = place.clientWidth; draw(); }
  }));
  watchers.get(place).observe(place);
}

class Plot {
  constructor(spec, width, height) {
    Object.assign(this, { spec, width, height, left: 44, right: 10, top: 8, bottom: 36, active: null });
    this.series = spec.series.map((s) => ({ ...s, points: s.points.filter((p) => p.y !== null) }));
    const all = this.series.flatMap((s) => s.points);
    const xs = all.map((p) => p.x), ys = all.map((p) => p.y);
    const [low, high] = spec.yRange || [Math.min(0, ...ys), Math.max(...ys)];
    this.x = [Math.min(...xs), Math.max(...xs)];
    this.y = all.length ? [low, high > low ? high : low + 1] : [0, 1];
    if (!all.length) this.x = [0, 1];
    if (!(this.x[1] > this.x[0])) this.x[1] = this.x[0] + 1;
    const help = "Arrow keys go from point to point and from line to line.";
    this.svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", tabindex: 0,
      "aria-label": `${spec.label}. ${all.length ? help : "Nothing to show."}` });
    this.axes();
    for (const s of this.series) this.svg.append(this.line(s));
    this.focus = make("g", {});
    this.svg.append(this.focus);
    this.listen();
  }

  px(x) { return this.left + ((x - this.x[0]) / (this.x[1] - this.x[0])) * (this.width - this.left - this.right); }

  py(y) { return this.height - this.bottom - ((y - this.y[0]) / (this.y[1] - this.y[0])) * (this.height - this.top - this.bottom); }

  axes() {
    const { width, height, left, right, bottom, top, spec } = this;
    for (const value of ticks(...this.y, 4)) {
      const y = this.py(value);
      this.svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
      const text = spec.percent ? `${Math.round(value * 1000) / 10} %` : short(value);
      this.svg.append(make("text", { x: left - 5, y: y + 4, "text-anchor": "end" }, text));
    }
    for (const value of ticks(...this.x, width < 320 ? 4 : 6)) {
      this.svg.append(make("text", { x: this.px(value), y: height - bottom + 16, "text-anchor": "middle" }, short(value)));
    }
    this.svg.append(make("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
    this.svg.append(make("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, spec.xLabel));
    if (spec.target !== null && spec.target !== undefined) {
      const y = this.py(spec.target);
      this.svg.append(make("line", { class: "target", x1: left, x2: width - right, y1: y, y2: y }));
      this.svg.append(make("text", { x: left + 4, y: y - 3 }, "target"));
    }
    if (spec.now !== null && spec.now !== undefined) {
      const x = this.px(spec.now);
      this.svg.append(make("line", { class: "now", x1: x, x2: x, y1: top, y2: height - bottom }));
    }
  }

  line(s) {
    const at = (p) => `${this.px(p.x).toFixed(1)} ${this.py(p.y).toFixed(1)}`;
    const group = make("g", { class: "line", "data-name": s.name, opacity: s.opacity });
    if (s.band) group.append(this.band(s, 0.15));
    group.append(make("path", { d: s.points.length ? `M${s.points.map(at).join("L")}` : "", fill: "none",
      stroke: s.look.colour, "stroke-width": s.width, "stroke-dasharray": dashes(s.look, s.width) }));
    if (s.marks) group.append(...s.points.map((p) => marker(s.look, this.px(p.x), this.py(p.y), 3.5)));
    return group;
  }

  band(s, opacity) {
    const ends = s.points.filter((p) => p.low !== undefined && p.low !== null);
    if (!ends.length) return make("g");
    const edge = (points, name) => points.map((p) => `${this.px(p.x).toFixed(1)} ${this.py(p[name]).toFixed(1)}`).join("L");
    const d = `M${edge(ends, "high")}L${edge([...ends].reverse(), "low")}Z`;
    return make("path", { d, fill: s.look.colour, opacity, stroke: "none" });
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => this.near(event));
    this.svg.addEventListener("pointerdown", (event) => this.near(event));
    this.svg.addEventListener("pointerleave", () => this.show(null));
    this.svg.addEventListener("blur", () => this.show(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    if (this.spec.pick) {
      this.svg.style.cursor = "pointer";
      this.svg.addEventListener("click", () => this.active && this.spec.pick(this.point().x));
    }
  }

  near(event) {
    const box = this.svg.getBoundingClientRect(), scale = this.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = null, least = Infinity;
    this.series.forEach((s, i) => s.points.forEach((p, j) => {
      // a thick line wins over a thin one that lies under it
      const far = Math.hypot(this.px(p.x) - x, this.py(p.y) - y) - s.width;
      if (far < least) [least, best] = [far, [i, j]];
    }));
    this.show(best, event.clientX, event.clientY);
  }

  key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") return this.show(null);
    if (event.key === "Enter" && this.active && this.spec.pick) return this.spec.pick(this.point().x);
    const shown = this.series.map((s, i) => i).filter((i) => this.series[i].points.length);
    if (!move || !shown.length) return undefined;
    event.preventDefault();
    let [i, j] = this.active || [shown[0], -1];
    if (move[0]) i = shown[(shown.indexOf(i) + move[0] + shown.length) % shown.length];
    j = Math.max(0, Math.min(this.series[i].points.length - 1, j + move[1]));
    this.show([i, j]);
    return undefined;
  }

  point() { return this.series[this.active[0]].points[this.active[1]]; }

  show(active, clientX, clientY) {
    this.active = active;
    this.focus.replaceChildren();
    if (!active) return tip.hide();
    const s = this.series[active[0]], p = this.point(), x = this.px(p.x), y = this.py(p.y);
    if (p.low !== undefined && p.low !== null) {
      this.focus.append(this.band(s, 0.18), make("line", { x1: x, x2: x, y1: this.py(p.low), y2: this.py(p.high),
        stroke: s.look.colour, "stroke-width": 3 }));
    }
    this.focus.append(this.line({ ...s, band: false, opacity: 1, width: s.width + 1 }), marker(s.look, x, y, 6));
    const box = this.svg.getBoundingClientRect(), scale = box.width / this.width;
    return tip.show(p.text, clientX ?? box.left + x * scale, clientY ?? box.top + y * scale);
  }
}
