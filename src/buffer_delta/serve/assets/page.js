// One page over /api/status and /api/history. Whatever comes from a queue may be hostile, so text is only ever set as
// text: nothing here makes HTML out of strings.
"use strict";

const EVERY_MS = 5000;
const KINDS = {
  idle: "ok", waiting: "ok", loading: "busy", retrying: "warn", starting: "busy", stopped: "",
  behind: "warn", stuck: "bad", blocked: "bad", fenced: "bad", failed: "bad", unreachable: "bad",
};
const byId = (id) => document.getElementById(id);

// Numbers as people say them

function count(n) { // of one that no number here holds exactly: its digits, which `exactly` has kept
  return n === null || n === undefined ? "–" : (typeof n === "string" ? BigInt(n) : n).toLocaleString("en");
}

function batches(n) { return `${count(n)} ${n === 1 ? "batch" : "batches"}`; }

function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(n) < 1000) return `${unit !== "B" ? n.toFixed(1) : n < 10 ? Number(n.toPrecision(2)) : Math.round(n)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s < 60) return `${s.toFixed(1)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const said = [];
  let left = Math.round(s);
  for (const [size, unit] of parts) {
    const whole = Math.floor(left / size);
    left -= whole * size;
    if (whole) said.push(`${whole} ${unit}`);
  }
  return said.slice(0, 2).join(" ");
}

function moment(ms) {
  if (ms === null || ms === undefined) return "–";
  const date = new Date(Number(ms)); // any 64-bit number may stand there
  return isNaN(date) ? `${ms} ms since 1970` : date.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
}

function range(first, last) { return first === last ? `${count(first)}` : `${count(first)}..${count(last)}`; }

// Elements

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = plain(text);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Characters that nobody sees, or that turn the text around them, are spelled out.
function plain(text) {
  return String(text).replace(/[\p{Cc}\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu,
    (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
}

function figures(list) {
  byId("figures").replaceChildren(...list.map(([name, fact, value, text]) => {
    const card = element("div");
    card.append(element("b", text, { "data-fact": fact, "data-value": String(value) }), element("span", name));
    return card;
  }));
}

function facts(id, list) {
  byId(id).replaceChildren(...list.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value, fact]) => {
      const told = element("dd", value, fact ? { "data-fact": fact } : {});
      told.classList.toggle("long", told.textContent.length > 60);
      return [element("dt", name), told];
    }));
}

// Columns are named, with their kind: `n` is a number, `text` needs room, `whole` stays on one line.
function table(id, columns, rows) {
  const head = element("thead"), headRow = element("tr"), body = element("tbody");
  for (const [name, kind] of columns) headRow.append(element("th", name, { class: kind }));
  head.append(headRow);
  for (const row of rows) {
    const made = element("tr");
    row.forEach((value, i) => {
      const [name, kind] = columns[i];
      made.append(element("td", value, { class: kind, "data-label": name }));
    });
    body.append(made);
  }
  byId(id).replaceChildren(...(rows.length ? [head, body] : []));
}

function show(id, visible) { byId(id).hidden = !visible; }

// Charts: lines over the last hour, or less while there is less

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function nice(top) {
  if (top <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(top));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((n) => n * size).find((n) => n >= top);
}

function chart(id, now, series, format) {
  const box = byId(id), width = Math.max(box.clientWidth, 240), height = 150;
  const left = 74, right = 8, top = 8, bottom = 20; // "15 min 30 s" must fit
  const oldest = Math.min(now, ...series.flatMap((points) => points.map((p) => p[0])));
  const window = [8, 20, 40].find((minutes) => now - oldest <= minutes * 60e3) || 60, span = window * 60e3;
  const high = nice(Math.max(0, ...series.flatMap((points) => points.map((p) => p[1]))));
  const x = (t) => left + (width - left - right) * (1 - (now - t) / span);
  const y = (v) => height - bottom - (height - top - bottom) * (v / high);
  const drawing = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const part of [0, 0.5, 1]) {
    const at = y(high * part);
    drawing.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
    drawing.append(shape("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, format(high * part)));
  }
  for (const part of width < 400 ? [1, 0.5, 0] : [1, 0.75, 0.5, 0.25, 0]) {
    const minutes = part * window, anchor = part === 1 ? "start" : part ? "middle" : "end";
    const text = minutes ? `−${minutes} min` : "now";
    drawing.append(shape("text", { x: x(now - minutes * 60e3), y: height - 5, "text-anchor": anchor }, text));
  }
  series.forEach((points, i) => {
    const seen = points.filter((p) => p[0] >= now - span);
    if (!seen.length) return;
    const path = seen.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" L");
    if (i === 0 && seen.length > 1) {
      const [first, last] = [x(seen[0][0]), x(seen[seen.length - 1][0])];
      drawing.append(shape("path", { class: "area", d: `M${first},${y(0)} L${path} L${last},${y(0)} Z` }));
    }
    if (seen.length > 1) drawing.append(shape("path", { class: i ? "line second" : "line", d: `M${path}` }));
    else drawing.append(shape("circle", { class: "dot", cx: x(seen[0][0]), cy: y(seen[0][1]), r: 3 }));
  });
  if (!series.flat().length) {
    drawing.append(shape("text", { x: (left + width) / 2, y: y(high / 2) - 6, "text-anchor": "middle" }, "nothing to show yet"));
  }
  box.replaceChildren(drawing);
}

function rates(history, key) { // each over a minute: single commits would be spikes
  const found = [];
  for (let i = 1; i < history.length; i++) {
    const [before, after] = [history[Math.max(0, i - 6)], history[i]];
    if (before[key] === null || after[key] === null) continue;
    const span = (after.time_ms - before.time_ms) / 1000;
    if (span > 0) found.push([after.time_ms, Math.max(0, after[key] - before[key]) / span]);
  }
  return found;
}

function recent(history, key) { // over the last minute
  const last = history[history.length - 1];
  const first = last && history.find((s) => s.time_ms >= last.time_ms - 65e3);
  if (!last || first === last || first[key] === null || last[key] === null) return null;
  return Math.max(0, last[key] - first[key]) / ((last.time_ms - first.time_ms) / 1000);
}

// The page

function waits(status) { // a queue that nobody has seen is not an empty one
  if (!status.length) return status.length === 0 ? "nothing" : "–";
  return `${batches(status.length)}, ${range(status.first_sequence, status.next_sequence - 1)}`;
}

function draw(status, history) {
  const name = status.store ? `${status.store} · ${status.manifest}` : status.name || "buffer-delta";
  document.title = plain(`${status.state} · ${name}`);
  const loader = status.loader, pill = byId("state");
  byId("queue").textContent = plain(name);
  pill.textContent = status.state;
  pill.className = `pill ${KINDS[status.state] || ""}`;
  byId("reason").textContent = plain(status.reason);

  const rateIn = recent(history, "next_sequence");
  const rowRate = loader ? recent(history, "rows") : null, byteRate = loader ? recent(history, "bytes") : null;
  const list = [
    ["batches waiting", "lag_batches", status.lag_batches, count(status.lag_batches)],
    ["lag, the oldest entry", "lag_seconds", status.lag_seconds, seconds(status.lag_seconds)],
    ["backlog", "backlog_bytes", status.backlog_bytes, bytes(status.backlog_bytes)],
    ["batches in per minute", "rate_in", rateIn, rateIn === null ? "–" : count(Math.round(rateIn * 60))],
  ];
  if (loader) {
    list.push(["rows per second", "rate_rows", rowRate, rowRate === null ? "–" : count(Math.round(rowRate))]);
    list.push(["since the last commit", "seconds_since_commit", loader.seconds_since_commit,
      seconds(loader.seconds_since_commit)]);
  }
  figures(list);

  chart("chart-lag", status.time_ms, [history.filter((s) => s.lag_seconds !== null).map((s) => [s.time_ms, s.lag_seconds])],
    (v) => seconds(v).replace(".0 s", " s"));
  const title = byId("rate-title");
  if (loader) {
    title.replaceChildren("Throughput ", element("small", `bytes loaded per second${byteRate === null ? "" : `, now ${bytes(byteRate)}/s`}`));
    chart("chart-rate", status.time_ms, [rates(history, "bytes")], (v) => bytes(v).replace(".0 ", " "));
  } else {
    title.replaceChildren("Batches per minute ", element("small", "in", { class: "key" }), " ",
      element("small", "out", { class: "key second" }));
    const perMinute = (key) => rates(history, key).map(([t, v]) => [t, v * 60]);
    chart("chart-rate", status.time_ms, [perMinute("next_sequence"), perMinute("first_sequence")],
      (v) => count(Number(v.toPrecision(2))));
  }

  const plan = status.plan;
  facts("queue-facts", [
    ["waiting", waits(status), "waiting"],
    ["next sequence", count(status.next_sequence), "next_sequence"],
    ["epoch", count(status.epoch), "epoch"],
    ["oldest entry", status.length ? moment(status.oldest_ingestion_ms) : null],
    ["newest entry", moment(status.newest_ingestion_ms)],
    ["manifest", bytes(status.manifest_bytes)],
    ["loaded as", status.ledger ? status.ledger.app_id : null],
    ["plan", plan ? `${range(plan.first, plan.last)}, ${plan.state}, attempt ${plan.attempts}` : null],
    ["blocked", status.blocked ? `${range(status.blocked.first, status.blocked.last)}: ${status.blocked.reason}` : null],
    ["problem", status.queue_problem],
  ]);
  show("loader-section", loader);
  if (loader) drawLoader(status, loader);
  show("tables-section", status.tables.length);
  const problems = status.tables.some((t) => t.problem);
  table("tables", [["table", "text"], ["loaded through", "n"], ["batches behind", "n"], ["version", "n"],
    ...(problems ? [["problem", "text"]] : [])],
    status.tables.map((t) => [t.table, t.committed === null ? (t.exists === null ? "not looked at" : "nothing") : count(t.committed),
      count(t.lag_batches), count(t.version), ...(problems ? [t.problem || ""] : [])]));
  const leases = status.leases;
  show("leases-section", leases);
  if (leases) {
    facts("leases-facts", [["not finished", count(leases.depth)], ["available", count(leases.available)],
      ["in flight", count(leases.in_flight)], ["delayed", count(leases.delayed)],
      ["blocked", leases.blocked ? `${batches(leases.blocked)}: ${leases.blocked_sequences.slice(0, 10).map(count).join(", ")}` : "0"],
      ["dead letters", count(leases.parked)], ["finished through", leases.finished_through < 0 ? "nothing" : count(leases.finished_through)],
      ["clock", leases.clock_behind_ms > 1000 ? `a worker's is ${seconds(leases.clock_behind_ms / 1000)} ahead` : null]]);
  }
  const clients = status.clients;
  show("clients-section", clients);
  if (clients) {
    facts("clients-facts", [["clients", count(clients.count)],
      ["marks lost", clients.lost ? `of batches ${range(clients.lost[0], clients.lost[1])}` : null]]);
    table("clients", [["client", "text"], ["client_seq", "n"], ["in batch", "n"]],
      clients.newest.map(([name, seq, sequence]) => [name, count(seq), count(sequence)]));
  }
}

function drawLoader(status, loader) {
  const now = loader.plan_attempts ? `batches ${range(loader.plan_first, loader.plan_last)}, attempt ${loader.plan_attempts}` : null;
  facts("loader-facts", [
    ["doing", `${loader.phase}, for ${seconds(loader.phase_seconds)}`, "phase"],
    ["range", now],
    ["epoch", loader.epoch === null ? null : count(loader.epoch)],
    ["running since", moment(loader.started_ms)],
    ["commits", count(loader.commits), "commits"],
    ["rows", count(loader.rows), "rows"],
    ["bytes", bytes(loader.bytes)],
    ["failed attempts", count(loader.retries), "retries"],
    ["last failure", loader.error],
  ]);
  show("commits-section", loader.last_commits.length);
  table("commits", [["time", "whole"], ["batches", "whole"], ["rows", "n"], ["size", "n"], ["seconds", "n"], ["lag after", "n"]],
    [...loader.last_commits].reverse().map((c) => [moment(c.time_ms).slice(11, 19), range(c.first, c.last), count(c.rows),
      bytes(c.bytes), c.seconds.toFixed(2), seconds(c.lag_seconds)]));
  show("dead-section", loader.dead_letter_table !== null || loader.dead_letters);
  facts("dead-facts", [["table", loader.dead_letter_table || "none"],
    ["since the start", count(loader.dead_letters), "dead_letters"]]);
  table("dead", [["newest reasons", "text"], ["records", "n"]],
    Object.entries(loader.dead_letter_reasons).map(([reason, n]) => [reason, count(n)]));
}

let shown = 0;

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(EVERY_MS) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return JSON.parse(await answer.text(), exactly);
}

// A whole number that no number here holds exactly stays what was written, where the browser tells it.
function exactly(key, value, written) {
  const isWrong = Number.isInteger(value) && !Number.isSafeInteger(value);
  return isWrong && /^-?\d+$/.test(written?.source ?? "") ? written.source : value;
}

async function refresh() {
  let told;
  try {
    told = await Promise.all([get("api/status"), get("api/history")]);
  } catch (error) {
    // What was true then may not be true now: nobody shall read an old state as today's.
    const old = shown ? `What you see below is as of ${moment(shown)}.` : error.message;
    doubt("no answer", `Whoever serves this page does not answer: it has ended, or cannot be reached. ${old}`);
    return;
  }
  try {
    draw(...told);
  } catch (error) {
    doubt("not shown", `This page cannot show what it was told: ${error.message}. The same is at api/status.`);
    return;
  }
  shown = told[0].time_ms;
  byId("updated").textContent = `as of ${moment(shown)}, refreshed every ${EVERY_MS / 1000} s`;
  mark("");
  document.body.dataset.overflow = document.documentElement.scrollWidth - window.innerWidth;
}

function doubt(state, reason) {
  document.title = `${state} · ${byId("queue").textContent}`;
  byId("state").textContent = state;
  byId("state").className = "pill bad";
  byId("reason").textContent = plain(reason);
  byId("updated").textContent = `asked again every ${EVERY_MS / 1000} s`;
  mark("late");
}

function mark(name) { for (const part of ["main", "footer"]) document.querySelector(part).className = name; }

refresh();
setInterval(refresh, EVERY_MS);
