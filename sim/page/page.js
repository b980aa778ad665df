/* Which drawings a report gets, by its schema. All figures come from the report's JSON. */
"use strict";

(() => {
  const {known, seconds, count, bytes, share, add, card, table, lines, bars, spans, topology} = octet;
  const page = document.getElementById("page");
  const data = JSON.parse(document.getElementById("data").textContent);

  /* The value at "a.b.c", null when there is none. */
  const at = (report, path) => path.split(".").reduce((o, k) => (o === null || o === undefined ? null : o[k]), report) ?? null;
  const column = (t, name) => t.columns.indexOf(name);
  const points = (t, x, y) => (t ? t.rows.map((r) => [r[column(t, x)], r[column(t, y)]]) : []);
  const any = (list) => list.some((p) => known(p[1]));
  const section = (title) => add(page, "h2", {}, title);
  const grid = () => add(page, "div", {class: "grid"});

  function layout(c) {
    if (!c.tensor_parallel_size) return c.url || "";
    let text = "TP" + c.tensor_parallel_size;
    if (c.pipeline_parallel_size > 1) text += " PP" + c.pipeline_parallel_size;
    if (c.data_parallel_size > 1) text += " DP" + c.data_parallel_size;
    if (c.decode_context_parallel_size > 1) text += " DCP" + c.decode_context_parallel_size;
    if (c.enable_expert_parallel) text += " EP";
    return text + (c.replicas > 1 ? ` × ${c.replicas} replicas` : "");
  }

  function title(report) {
    const c = report.configuration || {};
    const where = c.node || c.backend || c.url;
    return `${c.model || "a server"}${where ? " on " + where : ""}${layout(c) ? ", " + layout(c) : ""}`;
  }

  const nameOf = (report, i) => report.label || "run " + (i + 1);

  function badge(parent, verdict) {
    const look = {stable: "good", saturated: "bad", undecided: "unsure"}[verdict] || "soft";
    add(parent, "span", {class: "badge " + look}, verdict || "no verdict");
  }

  function head(name, under, verdict) {
    /* A page has one title; what stands within it (the run at a capacity) has a smaller one. */
    const first = page.querySelector("h1") === null;
    if (first) document.title = name + " · Octet";
    add(page, first ? "h1" : "h2", {}, name);
    const p = add(page, "p", {class: "soft"}, under + " ");
    if (verdict !== undefined) badge(p, verdict);
  }

  function tiles(list) {
    const t = add(page, "div", {class: "tiles"});
    for (const [name, value, look] of list)
      if (value !== "–") {
        const e = add(t, "div", {class: "tile"});
        add(e, "b", {class: look || null}, value);
        add(e, "span", {}, name);
      }
  }

  /* --- distributions and the course of a run, of one report or several ----------------------- */

  const metrics = [["ttft", "TTFT"], ["tpot", "TPOT"], ["itl", "ITL"], ["e2e", "E2E"]];

  const cdf = (report, metric) => {
    const c = at(report, "detail.cdf");
    return c && c[metric] ? c[metric].map((x, i) => [x, c.shares[i]]).filter((p) => p[0] > 0) : [];
  };

  const cdfAxes = {x: {label: "time", log: true, form: seconds}, y: {label: "share of values at or below", form: share, min: 0, max: 1}};

  function distributions(reports) {
    const g = grid(), one = reports.length === 1;
    const note = "Nearest rank, within 0.1 %; of what arrived in the measured window.";
    if (one) {
      for (const [id, list, name] of [["cdf-request", ["ttft", "e2e"], "Time to first token, and to the last"], ["cdf-token", ["itl", "tpot"], "Time between tokens (ITL), and per token of a request (TPOT)"]]) {
        const series = metrics.filter(([m]) => list.includes(m)).map(([m, n]) => ({name: n, points: cdf(reports[0], m)})).filter((s) => s.points.length);
        if (series.length) lines(card(g, name, note), id, Object.assign({series}, cdfAxes));
      }
      return;
    }
    for (const [m, n] of metrics) {
      const series = reports.map((r, i) => ({name: nameOf(r, i), points: cdf(r, m)})).filter((s) => s.points.length);
      if (series.length) lines(card(g, n, note), "cdf-" + m, Object.assign({series}, cdfAxes));
    }
  }

  const stepsOf = (t, x0, x1, y) => {
    const out = [];
    for (const r of t.rows) {
      if (!known(r[column(t, y)])) continue;
      out.push([r[column(t, x0)], r[column(t, y)]], [r[column(t, x1)], r[column(t, y)]]);
    }
    return out;
  };

  function overTime(parent, reports, id, name, note, y, form, table, columns, most) {
    const one = reports.length === 1;
    const series = [];
    reports.forEach((r, i) => {
      const t = at(r, table);
      if (!t) return;
      columns.forEach(([c, label], k) => {
        const list = table === "detail.course" ? stepsOf(t, "from_s", "end_s", c) : points(t, "time_s", c);
        if (any(list) && list.some((p) => p[1] > 0))
          series.push({name: one ? label : nameOf(r, i) + (columns.length > 1 ? " " + label : ""), points: list, color: one ? undefined : octet.order[i % octet.order.length], dashed: !one && k > 0});
      });
    });
    if (!series.length) return;
    const w = reports[0].window || {};
    lines(card(parent, name, note), id, {series, x: {label: "time in the run", form: seconds, min: 0}, y: {label: y, form, zero: true, max: most}, window: one ? {from: w.from_s, end: w.end_s} : {}});
  }

  const binNote = (reports) => {
    const t = at(reports[0], "detail.course");
    return t && t.rows.length ? `By arrival, in bins of ${seconds(t.rows[0][1] - t.rows[0][0])}.` : "";
  };

  const sampleNote = (reports, path) => {
    const t = at(reports[0], path);
    return t && t.rows.length > 1 ? `Sampled every ${seconds(t.rows[1][0] - t.rows[0][0])}; shaded: the measured window.` : "";
  };

  function course(reports) {
    const g = grid();
    overTime(g, reports, "ttft-time", "TTFT over time", binNote(reports), "TTFT", seconds, "detail.course", [["ttft_p50_s", "p50"], ["ttft_p99_s", "p99"]]);
    overTime(g, reports, "itl-time", "ITL over time", binNote(reports).replace("arrival", "time of the token"), "ITL", seconds, "detail.course", [["itl_p50_s", "p50"], ["itl_p99_s", "p99"]]);
    overTime(g, reports, "running-time", "Requests running and waiting", sampleNote(reports, "series"), "sequences", count, "series", [["running", "running"], ["waiting", "waiting"]]);
    overTime(g, reports, "kv-time", "KV pages in use", sampleNote(reports, "series"), "share of the device's pages", share, "series", [["kv_used", "KV pages"], ["state_used", "state slots"]], undefined);
    return g;
  }

  function batches(parent, reports) {
    const with_ = reports.filter((r) => at(r, "detail.batch_sizes"));
    if (!with_.length) return;
    const width = Math.max(...with_.map((r) => r.detail.batch_sizes.width));
    const sets = with_.map((r, i) => {
      const b = r.detail.batch_sizes, total = b.steps_in_bin.reduce((a, x) => a + x, 0), out = [];
      b.steps_in_bin.forEach((n, k) => {
        const bin = Math.floor((k * b.width) / width);
        out[bin] = (out[bin] || 0) + n / total;
      });
      return {name: nameOf(r, i), values: out};
    });
    const n = Math.max(...sets.map((s) => s.values.length));
    const labels = Array.from({length: n}, (_, k) => (width > 1 ? `${k * width}–${(k + 1) * width - 1}` : `${k}`));
    bars(card(parent, "Batch size", "Sequences of a step; share of the window's steps."), "batch-sizes", {labels, sets, label: "sequences", form: share, valueLabel: "share of steps", touching: true});
  }

  function parts(parent, reports) {
    const names = ["compute", "memory", "collective", "fixed", "copy", "wait"];
    const with_ = reports.filter((r) => at(r, "steps.parts"));
    if (!with_.length) return;
    const sets = names.map((p) => ({name: p, values: with_.map((r) => r.steps.parts[p] || 0)})).filter((s) => s.values.some((v) => v > 0));
    bars(card(parent, "What a step's time goes to", "Bound by arithmetic, memory, links, launches; share of step time."), "step-parts", {labels: with_.map((r, i) => (reports.length > 1 ? nameOf(r, i) : "steps")), sets, across: true, stacked: true, form: share, max: 1, height: 120 + 28 * with_.length});
  }

  /* --- the node ------------------------------------------------------------------------------- */

  const loadNames = [["hbm", "HBM"], ["compute", "compute (SM)"], ["nvlink", "NVLink"], ["pcie", "PCIe"], ["nic", "NIC"], ["host", "host memory and sockets"]];

  function node(report) {
    const t = at(report, "detail.loads");
    if (!t && !at(report, "detail.topology")) return;
    section("The node");
    const g = grid();
    if (t) {
      const series = loadNames.map(([c, n]) => ({name: n, points: points(t, "time_s", c)})).filter((s) => any(s.points) && (s.name !== "NIC" || s.points.some((p) => p[1] > 0)));
      const w = report.window || {};
      if (series.length)
        lines(card(g, "Use of resources over time", "The busiest of each kind. SM: time that kernels bound by arithmetic hold it; others: bytes over the datasheet's or measured rate.", true), "loads", {series, x: {label: "time in the run", form: seconds, min: 0}, y: {label: "share of capacity", form: share, zero: true}, window: {from: w.from_s, end: w.end_s}});
    }
    if (at(report, "detail.topology")) {
      const c = card(g, "Topology and load of links", "Mean over the measured window: width and colour by share of capacity; each link's figure is in its tip and in the table below.", true);
      topology(c, "topology", report.detail.topology, report.resources);
    }
    loadsTable(report);
  }

  function loadsTable(report) {
    const kinds = new Map();
    for (const r of report.resources || [])
      if (r.utilisation > 0.0005 || r.delayed_s > 0) kinds.set(r.kind, (kinds.get(r.kind) || []).concat(r));
    const total = (list, k) => list.reduce((a, r) => a + (r[k] || 0), 0);
    const rows = [...kinds.entries()].map(([kind, list]) => [kind, count(list.length), kind === "sm" ? "–" : bytes(list[0].capacity_per_s) + "/s", kind === "sm" ? seconds(total(list, "moved") / 1e9) : bytes(total(list, "moved")), share(total(list, "utilisation") / list.length), share(Math.max(...list.map((r) => r.utilisation))), seconds(total(list, "delayed_s"))]);
    if (rows.length)
      table(card(grid(), "Resources that were used", "In the measured window; SM: time that arithmetic held them. Delayed: steps and copies were late by this much because it was short.", true), [["kind"], ["used", "n"], ["capacity of each", "n"], ["moved by all", "n"], ["use, mean", "n"], ["use, most", "n"], ["delayed", "n"]], rows);
  }

  /* --- a few seconds of steps ------------------------------------------------------------------- */

  function stretch(report) {
    const s = at(report, "detail.stretch");
    if (!s) return;
    section("A few seconds of steps");
    const g = grid(), of = (t, name) => (r) => r[column(t, name)];
    const st = s.steps, start = of(st, "start_s"), end = of(st, "end_s"), replica = of(st, "replica");
    const tracks = [...new Set(st.rows.map((r) => "replica " + replica(r)))].sort();
    const copyTracks = [...new Set(s.copies.rows.map((r) => `copies ${r[0]} ${r[3]}`))].sort();
    const kind = (r) => (of(st, "prefills")(r) === 0 ? 0 : of(st, "prefills")(r) < of(st, "sequences")(r) ? 1 : 2);
    const tip = (r) => `of ${seconds(end(r) - start(r))}: ${of(st, "sequences")(r)} sequences, ${count(of(st, "tokens")(r))} tokens`;
    const sets = [["decode step", "blue"], ["mixed step", "orange"], ["prefill step", "red"]].map(([name, color], k) => ({
      name, color, spans: st.rows.filter((r) => kind(r) === k).map((r) => ["replica " + replica(r), start(r), end(r), tip(r)]),
    })).filter((x) => x.spans.length);
    if (s.copies.rows.length)
      sets.push({name: "copies", color: "purple", spans: s.copies.rows.map((r) => [`copies ${r[0]} ${r[3]}`, r[1], r[2], `${r[4]} items in ${seconds(r[2] - r[1])}`])});
    const axis = {from: s.from_s, until: s.until_s, label: "time in the run (s)", form: (x) => x.toFixed(2)};
    spans(card(g, "Steps", `${st.rows.length} steps from ${s.from_s.toFixed(3)} s to ${s.until_s.toFixed(3)} s; copies from the time they were asked for.`, true), "gantt-steps", Object.assign({tracks: tracks.concat(copyTracks), sets, height: 110 + 34 * (tracks.length + copyTracks.length)}, axis));
    const rq = s.requests, col = (name) => column(rq, name);
    if (!rq.rows.length) return;
    const name = (r) => "#" + r[col("index")];
    const to = (x) => (x === null ? s.until_s : x);
    const phases = [["queue", "grey", "arrival_s", "admitted_s"], ["prefill", "orange", "admitted_s", "first_token_s"], ["decode", "blue", "first_token_s", "end_s"]];
    const rsets = phases.map(([n, color, a, b]) => ({
      name: n, color,
      spans: rq.rows.filter((r) => r[col(a)] !== null).map((r) => [name(r), r[col(a)], to(r[col(b)]), `${seconds(to(r[col(b)]) - r[col(a)])}; ${count(r[col("input_tokens")])} tokens in, ${count(r[col("output_tokens")])} out`]),
    }));
    spans(card(g, "Requests that arrived in it", `The first ${rq.rows.length}; their decodes go on to the right.`, true), "gantt-requests", Object.assign({tracks: rq.rows.map(name), sets: rsets, height: 120 + 13 * rq.rows.length}, axis));
  }

  /* --- tables ----------------------------------------------------------------------------------- */

  function latencies(report) {
    const rows = Object.entries(report.latency_s || {}).filter(([, d]) => d && d.count)
      .map(([n, d]) => [n.length > 4 ? n.replace("_", " ") : n.toUpperCase(), count(d.count)].concat(["mean", "p50", "p90", "p95", "p99", "max"].map((k) => seconds(d[k]))));
    const c = card(grid(), "Latencies", "From the intended arrival, for the client; TPOT of requests with at least two tokens.", true);
    table(c, [["", ""], ["values", "n"], ["mean", "n"], ["p50", "n"], ["p90", "n"], ["p95", "n"], ["p99", "n"], ["max", "n"]], rows);
    const d = at(report, "latency_s.ttft");
    if (d && d.count < 10000)
      add(c, "p", {class: "note"}, `A p99 of requests rests on ${Math.max(1, Math.floor(d.count / 100))} of them above it.`);
    if (known(at(report, "latency_s.at_s")))
      add(c, "p", {class: "bad"}, `The run is saturated: its percentiles are those at ${seconds(report.latency_s.at_s)} and grow with its length.`);
  }

  function objectives(report) {
    const list = at(report, "slo.objectives") || [];
    if (!list.length) return;
    const c = card(grid(), "Objectives", `${share(report.slo.attainment)} of measured requests met every limit themselves.`, true);
    table(c, [["objective"], ["limit", "n"], ["value", "n"], ["", ""]], list.map((o) => [o.name, seconds(o.limit_s), seconds(o.value_s), verdictOf(o.met)]));
  }

  const verdictOf = (met) => add(null, "span", {class: met ? "good" : "bad"}, met ? "met" : "missed");

  /* By class of requests, and in the stretches that --worst-window looks at. */
  function classes(report) {
    const list = report.classes || [];
    if (!list.length) return;
    const limits = (c) => {
      const e = add(null, "span", {});
      for (const o of c.objectives || [])
        add(e, "div", {}, `${o.name} ${seconds(o.value_s)} of ${seconds(o.limit_s)}: `).append(verdictOf(o.met));
      return e;
    };
    table(card(grid(), "Classes of requests", "Each against its own objectives, or those of the run.", true),
      [["class"], ["requests", "n"], ["answered", "n"], ["within limits", "n"], ["TTFT p50", "n"], ["p99", "n"], ["TPOT p50", "n"], ["p99", "n"], ["E2E p99", "n"], ["objectives", "t"]],
      list.map((c) => [c.class, count(c.requests), count(c.answered), share(c.attainment), seconds(c.ttft_p50_s), seconds(c.ttft_p99_s), seconds(c.tpot_p50_s), seconds(c.tpot_p99_s), seconds(c.e2e_p99_s), limits(c)]));
  }

  function stretches(report) {
    const w = report.windows;
    if (!w || !w.worst) return;
    const row = (name, x) => [name, `${seconds(x.from_s)} on`, seconds(x.length_s), count(x.requests), share(x.attainment), seconds(x.ttft_p99_s), seconds(x.tpot_p99_s), seconds(x.e2e_p99_s), count(x.tokens_per_s)];
    table(card(grid(), "The worst stretch, and that with most traffic", "By arrival; worst: the smallest share of requests within every limit.", true),
      [["", ""], ["from"], ["length", "n"], ["requests", "n"], ["within limits", "n"], ["TTFT p99", "n"], ["TPOT p99", "n"], ["E2E p99", "n"], ["tokens/s that arrived", "n"]],
      [row("worst", w.worst), row("most traffic", w.peak)]);
  }

  /* Scenarios, and clients that give up. */
  function incidents(report) {
    const i = report.incidents;
    if (!i) return;
    section("What happened on the way");
    const g = grid();
    if (i.events.length)
      table(card(g, i.title || "Events", null, true), [["at", "n"], ["event", "t"]], i.events.map((e) => [`${e.at_s.toFixed(3)} s`, e.event]));
    const rows = [["requests whose engine was lost", count(i.lost_requests)], ["of them resumed", count(i.resumed)], ["tokens computed again for them", count(i.resumed_tokens)], ["requests that waited for a replica", count(i.parked)], ["replicas down, in all", seconds(i.down_s)], ["client timeouts", count(i.client_timeouts)], ["sent again by clients", count(i.client_retries)]];
    table(card(g, "Of the whole run"), [["", ""], ["", "n"]], rows);
    const e = i.energy;
    if (e)
      table(card(g, "Energy of all GPUs", "Low: dynamic power only while arithmetic binds; high: whenever a step runs."), [["", ""], ["low", "n"], ["high", "n"]],
        [["watts", count(e.watts_low), count(e.watts_high)], ["joules an output token", count(e.joules_per_token_low), count(e.joules_per_token_high)], ["kWh", count(e.joules_low / 3.6e6), count(e.joules_high / 3.6e6)]]);
  }

  function speculation(report) {
    const s = report.speculation;
    if (!s) return;
    section("Speculative decoding");
    const rows = [["method", s.method + (s.draft_model ? " " + s.draft_model : "")], ["drafts of a slice, at most", count(s.num_speculative_tokens)], ["slices that verified drafts", count(s.drafts)], ["drafts accepted", share(s.acceptance_share)], ["tokens a slice", count(s.tokens_per_slice)], ["pauses of sequences", count(s.pauses)], ["steps of the draft model", count(s.draft_model_steps)]];
    (s.accepted_share_by_place || []).forEach((x, k) => rows.push([`accepted at place ${k + 1}`, share(x)]));
    table(card(grid(), "Drafts in the measured window", null, true), [["", ""], ["", "n"]], rows);
  }

  /* Where the time of a decode step goes, what binds it, how many users that makes. */
  function stepParts(report) {
    const p = at(report, "step_parts");
    if (!p || !p.rows.length) return;
    section("A decode step by part");
    const names = Object.keys(p.rows[0].parts_s).filter((n) => p.rows.some((r) => r.parts_s[n] > 0));
    const turns = p.takes_over.map((t) => `${t.bound_by} from batch ${count(t.batch)}`).join(", ");
    const c = card(grid(), "Time by part", `At ${count(p.context_tokens)} tokens of context. Most of it is bound by: ${turns}.`, true);
    table(c, [["batch", "n"], ...names.map((n) => [n, "n"]), ["step", "n"], ["per token", "n"], ["bound by"]],
      p.rows.map((r) => [count(r.batch), ...names.map((n) => seconds(r.parts_s[n])), seconds(r.step_s), seconds(r.token_s), r.bound_by]));
    const u = p.users;
    const bounds = [["KV memory", u.by_kv_pages], ["recurrent state", u.by_state_slots], ["max-num-seqs", u.by_max_num_seqs], [known(u.limit_s) ? `${seconds(u.limit_s)} per token` : "time per token", u.by_time_per_token]];
    table(card(grid(), "Users at once", `${count(u.users)} of ${count(p.user_tokens)} tokens at their end; what holds them back: ${u.why}.`, true),
      [["bound"], ["users", "n"]], bounds.filter((b) => known(b[1])).map((b) => [b[0], count(b[1])]));
  }

  /* Every figure of a flat object, a row each. */
  function facts(parent, name, object, forms) {
    const rows = Object.entries(object || {}).filter(([, v]) => v !== null && typeof v !== "object")
      .map(([k, v]) => [k.replace(/_/g, " "), typeof v === "number" ? (forms && forms[k] ? forms[k](v) : count(v)) : String(v)]);
    if (rows.length) table(card(parent, name), [["", ""], ["", "t"]], rows);
  }

  function texts(parent, name, note, list) {
    if (!list || !list.length) return;
    const ul = add(card(parent, name, note, true), "ul");
    for (const text of list) add(ul, "li", {}, text);
  }

  function background(report) {
    section("What it rests on");
    const g = grid();
    texts(g, "Error of these figures", "What predictions of this kind were off by, where they could be compared.", report.errors);
    texts(g, "Assumptions", null, report.assumptions);
    texts(g, "Warnings", null, report.warnings);
    facts(g, "Configuration", report.configuration, {gpu_memory_utilization: share});
    facts(g, "Traffic", report.trace);
    const host = Object.fromEntries(["step_s", "step_per_sequence_s", "request_in_s", "request_out_per_token_s", "submit_lead_s"].map((k) => [k, seconds]));
    facts(g, "Host times charged", report.host_times, host);
    const m = report.memory;
    if (m && m.stages && m.stages.length) {
      const keys = Object.keys(m.stages[0]).filter((k) => !["first_layer", "layers"].includes(k));
      const columns = [["", ""]].concat(m.stages.map((s, i) => ["stage " + i, "n"]));
      table(card(g, "Memory of a GPU", `${count(m.cache_tokens)} tokens of cache a replica`), columns, keys.map((k) => [k.replace(/_/g, " ")].concat(m.stages.map((s) => bytes(s[k])))));
    }
  }

  /* --- one run ---------------------------------------------------------------------------------- */

  function numbers(report) {
    const met = at(report, "slo.met");
    return [
      ["requests/s", count(at(report, "throughput.requests_per_s"))],
      ["output tokens/s", count(at(report, "throughput.output_tokens_per_s"))],
      ["output tokens/s a GPU", count(at(report, "throughput.output_tokens_per_s_per_gpu"))],
      ["TTFT p50", seconds(at(report, "latency_s.ttft.p50"))],
      ["TTFT p99", seconds(at(report, "latency_s.ttft.p99"))],
      ["ITL p50", seconds(at(report, "latency_s.itl.p50"))],
      ["ITL p99", seconds(at(report, "latency_s.itl.p99"))],
      ["E2E p99", seconds(at(report, "latency_s.e2e.p99"))],
      ["within every limit", met === null ? "–" : share(at(report, "slo.attainment")), met ? "good" : "bad"],
      ["preemptions", count(at(report, "scheduler.preemptions"))],
      ["prefix hits", share(at(report, "scheduler.prefix_hit_share"))],
    ];
  }

  function runPage(report) {
    const w = report.window || {};
    head(title(report), `${at(report, "trace.name") || ""}: ${count(at(report, "requests.measured"))} requests measured from ${seconds(w.from_s)} to ${seconds(w.end_s)}.`, at(report, "verdict.verdict"));
    tiles(numbers(report));
    section("Latency");
    distributions([report]);
    latencies(report);
    objectives(report);
    classes(report);
    stretches(report);
    section("Course of the run");
    const g = course([report]);
    batches(g, [report]);
    parts(g, [report]);
    incidents(report);
    speculation(report);
    node(report);
    stepParts(report);
    stretch(report);
    background(report);
  }

  /* --- several runs ------------------------------------------------------------------------------ */

  const compared = [
    ["requests/s", "throughput.requests_per_s", count], ["good requests/s", "throughput.good_requests_per_s", count],
    ["output tokens/s", "throughput.output_tokens_per_s", count], ["TTFT p50", "latency_s.ttft.p50", seconds],
    ["TTFT p99", "latency_s.ttft.p99", seconds], ["TPOT p50", "latency_s.tpot.p50", seconds],
    ["TPOT p99", "latency_s.tpot.p99", seconds], ["ITL p99", "latency_s.itl.p99", seconds],
    ["E2E p50", "latency_s.e2e.p50", seconds], ["E2E p99", "latency_s.e2e.p99", seconds],
    ["within every limit", "slo.attainment", share], ["step mean", "steps.time.mean", seconds],
    ["sequences a step", "steps.sequences.mean", count], ["KV pages used", "use.kv_used.mean", share],
    ["preemptions", "scheduler.preemptions", count], ["prefix hits", "scheduler.prefix_hit_share", share],
    ["drafts accepted", "speculation.acceptance_share", share],
    ["requests whose engine was lost", "incidents.lost_requests", count],
    ["client timeouts", "incidents.client_timeouts", count],
    ["joules an output token, at most", "incidents.energy.joules_per_token_high", count],
  ];

  function severalTables(reports) {
    const rows = [["verdict"].concat(reports.map((r) => at(r, "verdict.verdict") || "–"))];
    for (const [n, path, form] of compared)
      if (reports.some((r) => known(at(r, path)))) rows.push([n].concat(reports.map((r) => form(at(r, path)))));
    table(card(grid(), "Side by side", null, true), [["", ""]].concat(reports.map((r, i) => [nameOf(r, i), "n"])), rows);
  }

  function severalPlots(reports) {
    section("Latency");
    distributions(reports);
    section("Course of the runs");
    const g = course(reports);
    batches(g, reports);
    parts(g, reports);
  }

  function severalPage(reports) {
    head(title(reports[0]), `${reports.length} configurations; ${at(reports[0], "trace.name") || ""}.`);
    severalTables(reports);
    severalPlots(reports);
    for (const r of reports) {
      section(nameOf(r, reports.indexOf(r)));
      const g = grid();
      texts(g, "Error of these figures", null, r.errors);
      texts(g, "Assumptions", null, r.assumptions);
    }
  }

  const chance = (p) => (p < 1e-6 ? "< 1e-6" : p.toPrecision(2));

  function comparePage(c) {
    const [a, b] = c.reports;
    head(`${nameOf(a, 0)} against ${nameOf(b, 1)}`, `${title(a)}; ${title(b)}.`);
    const k = card(grid(), "Differences and their significance", c.method, true);
    const look = (t) => (t.differs ? add(null, "span", {class: t.difference > 0 ? "bad" : "good"}, t.difference > 0 ? "longer" : "shorter") : add(null, "span", {class: "soft"}, t.equal ? "equal" : "no difference shown"));
    table(k, [["", ""], ["A", "n"], ["B", "n"], ["B − A", "n"], ["95 % interval", "n"], ["relative", "n"], ["p", "n"], ["p, all tests", "n"], ["B above A", "n"], ["", ""]],
      c.tests.map((t) => [t.name, seconds(t.a), seconds(t.b), seconds(t.difference), `${seconds(t.low)} … ${seconds(t.high)}`, share(t.relative), chance(t.p), chance(t.p_adjusted), share(t.above), look(t)]));
    texts(grid(), "How to read it", null, c.notes);
    severalTables(c.reports);
    severalPlots(c.reports);
    for (const r of c.reports) {
      section(nameOf(r, c.reports.indexOf(r)));
      const g = grid();
      texts(g, "Error of these figures", null, r.errors);
      texts(g, "Assumptions", null, r.assumptions);
    }
  }

  /* --- capacity ---------------------------------------------------------------------------------- */

  function capacityPage(c) {
    head("Capacity of " + title(c.at_load), `${count(c.rate)} sessions/s are served, ${count(c.too_high)} are not: ${c.criterion}.`);
    tiles([["sessions/s served", count(c.rate)], ["too high", count(c.too_high)], ["the trace's own rate", count(c.own_rate)], ["of the capacity", share(c.own_ratio)]]);
    table(card(grid(), "Rates that were tried", null, true), [["rate /s", "n"], ["verdict"], ["requests/s", "n"], ["output tokens/s", "n"], ["TTFT p99", "n"], ["TPOT p99", "n"], ["served"]],
      c.probes.map((p) => [count(p.rate), p.verdict, count(p.requests_per_s), count(p.output_tokens_per_s), seconds(p.ttft_p99_s), seconds(p.tpot_p99_s), p.served ? "yes" : "no"]));
    section(`At ${share(c.load)} of it`);
    runPage(c.at_load);
  }

  /* --- plans ------------------------------------------------------------------------------------- */

  const planName = (l, many) => (many && l.node ? l.node + ": " : "") + l.label;

  function front(plan, many) {
    const g = grid();
    const simulated = plan.layouts.filter((l) => l.coarse_rate > 0);
    const best = new Set(plan.pareto.map((l) => l.node + l.label));
    for (const [id, key, name] of [["pareto-ttft", "ttft_p99_s", "TTFT p99"], ["pareto-tpot", "tpot_p99_s", "TPOT p99"]]) {
      const point = (l) => [l[key], l.rate_per_gpu ?? l.coarse_rate / l.gpus, planName(l, many)];
      const series = [
        {name: "on the front", points: plan.pareto.map(point), dots: true, color: "green"},
        {name: "simulated, beaten", points: simulated.filter((l) => !best.has(l.node + l.label)).map(point), dots: true, color: "grey"},
      ].map((s) => Object.assign(s, {points: s.points.filter((p) => known(p[0]))})).filter((s) => s.points.length);
      if (series.length)
        lines(card(g, `Rate per GPU against ${name}`, "Each layout at its highest coarse rate under the objectives. Up and to the left is better."), id, {series, x: {label: name, form: seconds}, y: {label: "sessions/s a GPU", form: count, zero: true}});
    }
  }

  function demand(d) {
    const rows = [["mean rate", count(d.mean_rate) + " sessions/s"], ["growth", "× " + count(d.growth)], ["peak over the mean", "× " + count(d.peak)], ["to be served", count(d.rate) + " sessions/s"], ["the first layout lasts until growth", "× " + count(d.lasts_until_growth)]];
    if (d.worst_window) rows.push(["the worst stretch of the trace", `${seconds(d.worst_window.seconds)} from ${count(d.worst_window.from_s)} s on, by tokens; sessions start ${count(d.worst_window.session_starts)} times as often`]);
    table(card(grid(), "Demand", "The peak is held for as long as a run lasts, which is safe for a stretch that ends.", true), [["", ""], ["", "t"]], rows);
  }

  function planPage(plan) {
    const q = plan.question, finals = plan.finals, w = plan.what_if;
    const many = new Set(plan.layouts.map((l) => l.node)).size > 1;
    const slo = q.slo.map((o) => `${o.name} ≤ ${seconds(o.limit_s)}`).join(", ");
    head(`Plan: ${q.goal} of ${q.model}`, `${q.trace}: ${count(q.mean_input_tokens)} tokens in and ${count(q.mean_output_tokens)} out in the mean; ${slo}${q.wanted_rate ? `; for ${count(q.wanted_rate)} sessions/s` : ""}.`);
    if (plan.no_verdict) {
      add(page, "p", {class: "bad"}, `No verdict is possible, and no layout is recommended. ${plan.no_verdict}.`);
      if (finals.length)
        table(card(grid(), "What can be said", "The highest rate that was seen to be served, and what the roofline allows.", true), [["layout"], ["GPUs", "n"], ["/s at least", "n"], ["/s at most", "n"]],
          finals.map((x) => [planName(x, many), count(x.gpus_per_node), count(x.rate), count(x.floor_rate)]));
    } else if (!finals.length) {
      add(page, "p", {class: "bad"}, "No layout serves this under these objectives.");
    } else {
      const f = finals[0];
      tiles([["recommended", planName(f, many)], ["GPUs", count(f.gpus_per_node * f.nodes)], ["sessions/s a node", count(f.rate) + (known(f.rate_half) ? " ± " + count(f.rate_half) : "")], ["TTFT p99", seconds(f.ttft_p99_s)], ["TPOT p99", seconds(f.tpot_p99_s)], ["a million output tokens", count(f.price_per_million_tokens)], ["range of the rate", `${count(w.rate_low)} – ${count(w.rate_high)}`]]);
      const c = card(grid(), "Command", f.replicas > 1 || f.nodes > 1 ? `${f.replicas} on each of ${f.nodes} node${f.nodes > 1 ? "s" : ""}, behind a router to the least loaded` : null, true);
      add(c, "pre", {id: "serve"}, plan.serve);
      section("The best, in full");
      const t = card(grid(), "Finals", "Whole horizon, each stream a search of its own; interval of 95 % over streams.", true);
      table(t, [["layout"], ["GPUs", "n"], ["rate /s", "n"], ["± 95 %", "n"], ["streams", "n"], ["requests a stream", "n"], ["TTFT p99", "n"], ["TPOT p99", "n"], ["/s a GPU", "n"], ["per 1M tokens", "n"]],
        finals.map((x) => [planName(x, many), x.nodes > 0 ? count(x.gpus_per_node * x.nodes) : "–", count(x.rate), count(x.rate_half), count(x.n), count(x.requests_least), seconds(x.ttft_p99_s), seconds(x.tpot_p99_s), count(x.rate_per_gpu), count(x.price_per_million_tokens)]), 0);
      if (f.p99_thin) add(t, "p", {class: "note"}, `The first one's p99 rest on ${count(f.requests_least)} requests a stream, fewer than 10,000.`);
      if (f.warmup_short) add(t, "p", {class: "note"}, "The warm-up is shorter than five mean residence times: a longer load may serve less.");
      bars(card(grid(), "Rate of the finals, and what changes do to the first", w.cost_error_from, true), "what-if", {labels: w.changes.map((x) => x.change).concat(["as it is"]), sets: [{name: planName(f, many), values: w.changes.map((x) => x.rate).concat([f.rate])}].concat(finals.length > 1 ? [{name: planName(finals[1], many), values: w.changes.map((x) => x.runner_up_rate).concat([finals[1].rate])}] : []), across: true, form: count, valueLabel: "sessions/s of a node", height: 100 + 44 * (w.changes.length + 1)});
      const v = card(grid(), "What would change the answer", null, true);
      table(v, [["if"], ["rate /s", "n"], ["GPUs", "n"], ["runner-up /s", "n"], ["", ""]], w.changes.map((x) => [x.change + (x.change.startsWith("step costs") ? ` ${share(w.cost_error)}` : ""), count(x.rate), count(x.gpus), count(x.runner_up_rate), x.flips ? add(null, "span", {class: "bad"}, "the ranking flips") : ""]));
      add(v, "p", {class: w.flips ? "bad" : "soft"}, w.flips ? "The ranking of the first two flips under one of these changes." : "The first stays ahead of the second under each of these changes.");
      add(v, "p", {class: "soft"}, `Coarse: each is a ratio of two rates that are told to ${share(plan.method.coarse_tolerance)} each, smaller differences say nothing.`);
      if (f.after_loss)
        table(card(grid(), "One GPU lost", "The rates of this plan are those of what goes on after the loss of one GPU; whole: coarse.", true), [["layout"], ["what goes on"], ["/s after the loss", "n"], ["/s whole", "n"]], finals.map((x) => [planName(x, many), x.after_loss, count(x.rate), count(x.healthy_rate)]));
      if (plan.demand) demand(plan.demand);
      const g = grid();
      texts(g, "Error of these figures", "What predictions of this kind were off by, where they could be compared.", w.cost_error_from ? [w.cost_error_from] : []);
      texts(g, "Assumptions", "Of the first final's runs.", plan.assumptions);
    }
    if (plan.pareto.length) {
      section("Pareto front");
      front(plan, many);
      table(card(grid(), "On the front", "Simulated layouts that none beats in rate per GPU, TTFT and TPOT together; coarse.", true), [["layout"], ["GPUs", "n"], ["/s", "n"], ["/s a GPU", "n"], ["TTFT p99", "n"], ["TPOT p99", "n"]],
        plan.pareto.map((l) => [planName(l, many), count(l.gpus), count(l.rate_per_gpu * l.gpus), count(l.rate_per_gpu), seconds(l.ttft_p99_s), seconds(l.tpot_p99_s)]));
    }
    section("Layouts");
    const m = plan.method.layouts;
    const l = card(grid(), "All layouts", `${m.simulated + m.finalist} simulated, of them ${m.finalist} in full; ${m.bounded} bounded by the roofline; ${m.outpaced} outpaced by estimate; ${m.illegal} illegal. Coarse: ${count(plan.method.coarse_requests)} requests.`, true);
    l.classList.add("long");
    const order = ["finalist", "simulated", "outpaced", "bounded", "illegal"];
    const rows = [...plan.layouts].sort((a, b) => order.indexOf(a.fate) - order.indexOf(b.fate) || (b.coarse_rate || 0) - (a.coarse_rate || 0));
    table(l, [["layout"], ["GPUs", "n"], ["fate"], ["coarse /s", "n"], ["priced /s", "n"], ["roofline /s", "n"], ["why", "t"]],
      rows.map((x) => [planName(x, many), count(x.gpus), x.fate, x.coarse_rate > 0 ? count(x.coarse_rate) : "–", count(x.priced_rate), count(x.floor_rate), x.why || ""]));
  }

  /* --- by schema --------------------------------------------------------------------------------- */

  const pages = {
    "octet-replay-1": runPage,
    "octet-comparison-1": (c) => severalPage(c.reports),
    "octet-compare-1": comparePage,
    "octet-capacity-1": capacityPage,
    "octet-plan-1": planPage,
  };
  pages[data.schema](data);
  const version = data.octet || (data.reports && data.reports[0].octet) || (data.at_load && data.at_load.octet) || "";
  add(page, "footer", {}, `Octet ${version}. Plots: Chart.js ${Chart.version}.`);
  octet.start();
})();
