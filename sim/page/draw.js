/* Kinds of drawing that a report's page is made of. Everything here takes plain values; what a
 * report holds is known to page.js alone. */
"use strict";

const octet = (() => {
  /* --- values as text --------------------------------------------------------------------- */

  const known = (x) => x !== null && x !== undefined && Number.isFinite(x);

  const digits = (x) => (Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2));

  function seconds(x) {
    if (!known(x)) return "–";
    const a = Math.abs(x);
    if (a === 0) return "0";
    if (a < 1e-6) return digits(x * 1e9) + " ns";
    if (a < 1e-3) return digits(x * 1e6) + " µs";
    if (a < 1) return digits(x * 1e3) + " ms";
    if (a < 600) return digits(x) + " s";
    return digits(x / 60) + " min";
  }

  function count(x) {
    if (!known(x)) return "–";
    if (Math.abs(x) >= 100 || Number.isInteger(x))
      return Math.round(x).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
    return x.toPrecision(3).replace(/\.?0+$/, "");
  }

  function bytes(x) {
    if (!known(x)) return "–";
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let i = 0;
    for (; Math.abs(x) >= 1000 && i < units.length - 1; i++) x /= 1000;
    return (i === 0 ? count(x) : digits(x)) + " " + units[i];
  }

  const share = (x) => (known(x) ? (100 * x).toFixed(Math.abs(x) < 0.1 ? 2 : 1) + " %" : "–");

  const percent = (x) => Number((100 * x).toFixed(1)) + " %"; /* on an axis */

  /* --- elements --------------------------------------------------------------------------- */

  function add(parent, tag, attributes, ...children) {
    const svg = ["svg", "rect", "line", "text", "g", "title", "path"].includes(tag);
    const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {}))
      if (value !== undefined && value !== null) e.setAttribute(name, value);
    for (const child of children) e.append(child);
    if (parent) parent.append(e);
    return e;
  }

  function card(parent, title, note, wide) {
    const e = add(parent, "section", {class: "card" + (wide ? " wide" : "")});
    add(e, "h3", {}, title);
    if (note) add(e, "p", {class: "note"}, note);
    return e;
  }

  /* columns: [heading, "n" for a number, "t" for text]; rows of texts or elements. */
  function table(parent, columns, rows, best) {
    const t = add(add(parent, "div", {class: "scroll"}), "table");
    const head = add(add(t, "thead"), "tr");
    for (const [name, form] of columns) add(head, "th", {class: form || null}, name);
    const body = add(t, "tbody");
    rows.forEach((row, i) => {
      const r = add(body, "tr", {class: best !== undefined && i === best ? "best" : null});
      row.forEach((cell, k) => add(r, "td", {class: columns[k][1] || null}, cell));
    });
    return t;
  }

  /* --- colours ---------------------------------------------------------------------------- */

  const light = {
    ink: "#1c2430", soft: "#5b6675", line: "#dde2e9", shade: "rgba(43,108,196,0.06)",
    blue: "#2b6cc4", orange: "#c9701a", green: "#1f8a5b", red: "#c23b3b", purple: "#7a4fc0",
    teal: "#11808c", grey: "#7d8896", pink: "#b8457f",
  };
  const dark = {
    ink: "#e6eaf0", soft: "#9aa6b5", line: "#303946", shade: "rgba(122,170,240,0.08)",
    blue: "#7aaaf0", orange: "#f0a35a", green: "#4cc38a", red: "#f07878", purple: "#b494ec",
    teal: "#56c4d0", grey: "#98a3b1", pink: "#e88bb8",
  };
  const order = ["blue", "orange", "green", "purple", "red", "teal", "pink", "grey"];
  let printing = false;

  const theme = () =>
    !printing && window.matchMedia("(prefers-color-scheme: dark)").matches ? dark : light;

  /* --- plots ------------------------------------------------------------------------------ */

  const plots = [];

  /* The measured window, behind everything. */
  const windowShade = {
    id: "windowShade",
    beforeDatasetsDraw(chart, args, options) {
      if (!options.from && options.from !== 0) return;
      const {ctx, chartArea: a, scales} = chart;
      const x0 = Math.max(a.left, scales.x.getPixelForValue(options.from));
      const x1 = Math.min(a.right, scales.x.getPixelForValue(options.end));
      if (!(x1 > x0)) return;
      ctx.save();
      ctx.fillStyle = theme().shade;
      ctx.fillRect(x0, a.top, x1 - x0, a.bottom - a.top);
      ctx.restore();
    },
  };

  function axis(t, o) {
    const a = {
      type: o.log ? "logarithmic" : "linear",
      min: o.min, max: o.max, beginAtZero: o.zero,
      title: {display: !!o.label, text: o.label, color: t.soft},
      ticks: {color: t.soft, maxRotation: 0, autoSkipPadding: 14},
      grid: {color: t.line, borderColor: t.line},
    };
    const form = o.form === share ? percent : o.form;
    if (form) a.ticks.callback = (v) => (o.log && !isDecade(v) ? null : form(v));
    return a;
  }

  const isDecade = (v) => {
    const m = v / Math.pow(10, Math.floor(Math.log10(v) + 1e-9));
    return Math.abs(m - 1) < 1e-6 || Math.abs(m - 2) < 1e-6 || Math.abs(m - 5) < 1e-6;
  };

  function plot(parent, id, height, config) {
    const box = add(parent, "div", {class: "plot", style: height ? `height:${height}px` : null});
    const canvas = add(box, "canvas", {id, role: "img", "aria-label": id});
    plots.push({canvas, config, chart: null});
  }

  function legend(t, n) {
    return {display: n > 1, labels: {color: t.ink, boxWidth: 14, boxHeight: 3}};
  }

  /* o.series: [{name, points: [[x, y]], color, dashed, stepped, dots}] */
  function lines(parent, id, o) {
    plot(parent, id, o.height, (t) => ({
      type: "scatter",
      data: {
        datasets: o.series.map((s, i) => ({
          label: s.name,
          data: s.points.filter((p) => known(p[0]) && known(p[1])).map(([x, y, tip]) => ({x, y, tip})),
          showLine: !s.dots, stepped: s.stepped || false,
          borderColor: t[s.color || order[i % order.length]],
          backgroundColor: t[s.color || order[i % order.length]],
          borderWidth: 1.8, borderDash: s.dashed ? [5, 4] : [],
          pointRadius: s.dots ? 5 : 0, pointHitRadius: 8,
        })),
      },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false,
        interaction: {mode: "nearest", intersect: false},
        scales: {x: axis(t, o.x), y: axis(t, o.y)},
        plugins: {
          legend: legend(t, o.series.length),
          windowShade: o.window || {},
          tooltip: {
            callbacks: {
              label: (c) =>
                (c.raw.tip ? c.raw.tip + ": " : c.dataset.label ? c.dataset.label + ": " : "") +
                (o.y.form || count)(c.parsed.y) + " at " + (o.x.form || count)(c.parsed.x),
            },
          },
        },
      },
      plugins: [windowShade],
    }));
  }

  /* o.labels, o.sets: [{name, values, color}]; o.across: bars lie */
  function bars(parent, id, o) {
    plot(parent, id, o.height, (t) => {
      const labels = {
        stacked: o.stacked, title: {display: !!o.label, text: o.label, color: t.soft},
        ticks: {color: t.soft, maxRotation: 0, autoSkipPadding: 10}, grid: {display: false, borderColor: t.line},
      };
      const values = Object.assign(axis(t, {label: o.valueLabel, form: o.form, zero: true, max: o.max}), {stacked: o.stacked});
      return {
        type: "bar",
        data: {
          labels: o.labels,
          datasets: o.sets.map((s, i) => ({
            label: s.name, data: s.values,
            backgroundColor: t[s.color || order[i % order.length]],
            categoryPercentage: o.touching ? 1 : 0.8, barPercentage: o.touching ? 0.96 : 0.9,
          })),
        },
        options: {
          animation: false, responsive: true, maintainAspectRatio: false, indexAxis: o.across ? "y" : "x",
          scales: o.across ? {y: labels, x: values} : {x: labels, y: values},
          plugins: {
            legend: legend(t, o.sets.length),
            tooltip: {callbacks: {label: (c) => (c.dataset.label || "") + ": " + (o.form || count)(c.raw)}},
          },
        },
      };
    });
  }

  /* o.tracks: names; o.sets: [{name, color, spans: [[track, from, to, tip]]}] */
  function spans(parent, id, o) {
    plot(parent, id, o.height, (t) => ({
      type: "bar",
      data: {
        labels: o.tracks,
        datasets: o.sets.map((s, i) => ({
          label: s.name,
          data: s.spans.map(([track, from, to, tip]) => ({y: track, x: [from, to], tip})),
          backgroundColor: t[s.color || order[i % order.length]],
          grouped: false, borderSkipped: false, barPercentage: 0.9, categoryPercentage: 0.9, minBarLength: 1,
          borderWidth: s.spans.length < 300 ? {left: 1, right: 0, top: 0, bottom: 0} : 0, borderColor: t === dark ? "#1b212a" : "#ffffff",
        })),
      },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, indexAxis: "y",
        scales: {
          x: axis(t, {label: o.label, min: o.from, max: o.until, form: o.form}),
          y: {type: "category", ticks: {color: t.soft, autoSkip: true, autoSkipPadding: 2}, grid: {color: t.line, borderColor: t.line}},
        },
        interaction: {mode: "nearest", axis: "xy", intersect: true},
        plugins: {
          legend: legend(t, 2),
          tooltip: {callbacks: {title: () => "", label: (c) => c.dataset.label + " " + (c.raw.tip || "")}},
        },
      },
    }));
  }

  function draw() {
    const t = theme();
    let drawn = 0;
    for (const p of plots) {
      if (p.chart) p.chart.destroy();
      p.chart = new Chart(p.canvas, p.config(t));
      drawn++;
    }
    document.querySelectorAll("[data-load]").forEach(loadColour);
    return drawn;
  }

  function start() {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    window.octetDrawn = draw();
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    const paper = (on) => () => {
      printing = on;
      draw();
      /* Width of the paper, in which the charts' boxes lie by now. */
      for (const p of plots) p.chart.resize();
    };
    window.addEventListener("beforeprint", paper(true));
    window.addEventListener("afterprint", paper(false));
  }

  /* --- topology --------------------------------------------------------------------------- */

  /* From grey over blue and orange to red, by the share of the capacity that is in use. */
  function loadColour(e) {
    const t = theme(), x = Number(e.getAttribute("data-load"));
    const colour = x < 0.01 ? getComputedStyle(document.documentElement).getPropertyValue("--load-0").trim()
      : x < 0.3 ? t.blue : x < 0.6 ? t.green : x < 0.85 ? t.orange : t.red;
    e.setAttribute(e.tagName === "rect" ? "fill" : "stroke", colour);
  }

  function link(svg, x0, y0, x1, y1, loads) {
    const known = loads.filter((l) => l);
    const most = known.reduce((a, l) => Math.max(a, l.utilisation || 0), 0);
    const e = add(svg, "line", {x1: x0, y1: y0, x2: x1, y2: y1, "stroke-width": 2 + 5 * Math.min(1, most), "data-load": most.toFixed(4)});
    add(e, "title", {}, known.map((l) => `${l.name}: ${share(l.utilisation)} of ${l.kind === "sm" ? "time" : bytes(l.capacity_per_s) + "/s"}`).join("\n"));
    return most;
  }

  function box(svg, x, y, w, h, name, under, off) {
    const g = add(svg, "g", {class: off ? "off" : null});
    add(g, "rect", {class: "box", x, y, width: w, height: h, rx: 5});
    add(g, "text", {x: x + w / 2, y: y + (under ? 18 : h / 2 + 4), "text-anchor": "middle"}, name);
    if (under) add(g, "text", {class: "soft", x: x + w / 2, y: y + 33, "text-anchor": "middle"}, under);
    return g;
  }

  /* A load as a filled part of a small bar. */
  function gauge(svg, x, y, w, name, l) {
    add(svg, "text", {class: "soft", x, y: y + 9}, name);
    add(svg, "rect", {x: x + 38, y, width: w - 38, height: 10, "data-load": 0});
    const u = l && l.utilisation ? Math.min(1, l.utilisation) : 0;
    const e = add(svg, "rect", {x: x + 38, y, width: Math.max(0.5, (w - 38) * u), height: 10, "data-load": u.toFixed(4)});
    add(e, "title", {}, l ? `${l.name}: ${share(l.utilisation)}` : name);
  }

  function topology(parent, id, node, resources) {
    const by = Object.fromEntries(resources.map((r) => [r.name, r]));
    const n = node.gpus.length, w = 104, gap = 14, width = Math.max(520, n * (w + gap) + gap);
    const nics = Boolean(by["gpu0-nic-up"]), d = nics ? 22 : 0;
    const svg = add(add(parent, "div", {class: "scroll"}), "svg", {id, viewBox: `0 0 ${width} ${400 + d}`, role: "img", "aria-label": "topology of the node", style: `min-width:${Math.min(width, n > 8 ? 1150 : 700)}px`});
    const at = (i) => gap + i * (w + gap) + (width - n * (w + gap) - gap) / 2;
    const middle = (list) => list.reduce((a, x) => a + x, 0) / list.length;
    const centre = (i) => at(i) + w / 2;
    const groups = (key) => {
      const m = new Map();
      node.gpus.forEach((g) => m.set(g[key], (m.get(g[key]) || []).concat(centre(g.gpu))));
      return [...m.entries()].map(([k, xs]) => [k, middle(xs)]);
    };
    const switches = groups("pcie_switch"), roots = groups("root_complex"), sockets = groups("socket");
    const find = (list, k) => list.find(([key]) => key === k)[1];
    node.gpus.forEach((g) => {
      const x = centre(g.gpu);
      if (node.nvswitch) link(svg, x, 44, x, 92, [by[`gpu${g.gpu}-nv-up`], by[`gpu${g.gpu}-nv-down`]]);
      else if (g.pair !== null && g.pair > g.gpu) {
        link(svg, x, 70, centre(g.pair), 70, [by[`gpu${g.gpu}-nv-up`], by[`gpu${g.gpu}-nv-down`]]);
        for (const k of [g.gpu, g.pair]) link(svg, centre(k), 70, centre(k), 92, [by[`gpu${k}-nv-up`], by[`gpu${k}-nv-down`]]);
      }
      link(svg, x, 186 + d, find(switches, g.pcie_switch), 236 + d, [by[`gpu${g.gpu}-pcie-up`], by[`gpu${g.gpu}-pcie-down`]]);
    });
    switches.forEach(([k, x]) => {
      const g = node.gpus.find((q) => q.pcie_switch === k);
      link(svg, x, 262 + d, find(roots, g.root_complex), 296 + d, [by[`switch${k}-up`], by[`switch${k}-down`]]);
    });
    roots.forEach(([k, x]) => {
      const g = node.gpus.find((q) => q.root_complex === k);
      link(svg, x, 322 + d, find(sockets, g.socket), 356 + d, [by[`root${k}-up`], by[`root${k}-down`]]);
    });
    const nodeOf = (socket) => node.gpus.find((g) => g.socket === socket).node;
    for (let i = 1; i < sockets.length; i++)
      if (nodeOf(sockets[i - 1][0]) === nodeOf(sockets[i][0])) link(svg, sockets[i - 1][1] + 65, 376 + d, sockets[i][1] - 65, 376 + d, [by[`socket${i - 1}-to-${i}`], by[`socket${i}-to-${i - 1}`]]);
    const nodes = Math.max(...node.gpus.map((g) => g.node)) + 1, each = n / nodes;
    for (let k = 0; node.nvswitch && k < nodes; k++)
      box(svg, at(k * each), 14, each * (w + gap) - gap, 30, nodes > 1 ? `NVSwitch of node ${k}` : "NVSwitch");
    node.gpus.forEach((g) => {
      box(svg, at(g.gpu), 92, w, 94 + d, "GPU " + g.gpu, g.replica === null ? "not used" : `replica ${g.replica}, rank ${g.rank}`, g.replica === null);
      gauge(svg, at(g.gpu) + 8, 138, w - 16, "SM", by[`gpu${g.gpu}-sm`]);
      gauge(svg, at(g.gpu) + 8, 160, w - 16, "HBM", by[`gpu${g.gpu}-hbm`]);
      const [up, down] = [by[`gpu${g.gpu}-nic-up`], by[`gpu${g.gpu}-nic-down`]];
      if (nics) gauge(svg, at(g.gpu) + 8, 182, w - 16, "NIC", (up.utilisation || 0) > (down.utilisation || 0) ? up : down);
    });
    switches.forEach(([k, x]) => box(svg, x - 55, 236 + d, 110, 26, "PCIe switch " + k));
    roots.forEach(([k, x]) => box(svg, x - 55, 296 + d, 110, 26, "root " + k));
    sockets.forEach(([k, x]) => {
      const s = box(svg, x - 65, 356 + d, 130, 40, "");
      add(s, "text", {x, y: 371 + d, "text-anchor": "middle"}, "socket " + k);
      gauge(svg, x - 57, 379 + d, 114, "DRAM", by[`dram${k}`]);
    });
  }

  return {known, seconds, count, bytes, share, add, card, table, lines, bars, spans, topology, start, order};
})();
