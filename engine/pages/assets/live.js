// What the page does beyond its HTML: it counts times, takes in what changed, follows a log, draws plots. All of it can be left out.
"use strict";
(() => {
  const main = document.getElementById("main");
  const news = document.getElementById("news");
  const ahead = main && main.dataset.now ? Number(main.dataset.now) - Date.now() / 1000 : 0; // of the daemon's clock
  const now = () => Date.now() / 1000 + ahead;

  // Times.

  const STEPS = [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]];

  function duration(seconds) {
    const whole = Math.round(Math.abs(seconds));
    for (const [unit, name, small, smallName] of STEPS) {
      if (whole >= unit) {
        const rest = Math.floor((whole % unit) / small);
        return `${Math.floor(whole / unit)}${name}${rest ? ` ${String(rest).padStart(2, "0")}${smallName}` : ""}`;
      }
    }
    return `${whole}s`;
  }

  const coarse = (seconds) => (Math.abs(seconds) >= 3600 ? duration(seconds) : duration(seconds).split(" ")[0]);

  function told(at, form) {
    const away = at - now();
    if (form === "since") return duration(Math.max(-away, 0));
    if (form === "soon" && away < 1) return "soon";
    if (Math.abs(away) < 1) return "now";
    return away > 0 ? `in ${coarse(away)}` : `${coarse(away)} ago`;
  }

  function tellTimes(root) {
    for (const one of root.querySelectorAll("time[data-at]")) {
      const at = Number(one.dataset.at);
      const text = told(at, one.dataset.form);
      if (one.textContent !== text) one.textContent = text;
      if (!one.title) one.title = new Date(at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
    }
  }

  function say(text, bad) {
    if (!news || news.textContent === text) return;
    news.textContent = text;
    news.className = bad ? "bad" : "";
  }

  // Parts that are told anew.

  function replace(part, html) {
    const scrolled = [...part.querySelectorAll(".wide, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
    const open = [...part.querySelectorAll("details")].map((one) => one.open);
    const had = part.contains(document.activeElement) ? document.activeElement : null;
    const link = had && had.getAttribute("href");
    const label = had && had.getAttribute("aria-label");
    part.innerHTML = html; // ours, escaped where it was made
    part.querySelectorAll(".wide, pre").forEach((one, place) => {
      if (scrolled[place]) [one.scrollLeft, one.scrollTop] = scrolled[place];
    });
    part.querySelectorAll("details").forEach((one, place) => { one.open = Boolean(open[place]); });
    if (had) {
      const again = [...part.querySelectorAll("a, [tabindex]")]
        .find((one) => (link ? one.getAttribute("href") === link : label && one.getAttribute("aria-label") === label));
      if (again) again.focus({ preventScroll: true });
    }
    tellTimes(part);
  }

  let version = null;

  async function reload() {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const other = fresh.getElementById(part.id);
      if (other && other.innerHTML !== part.innerHTML) replace(part, other.innerHTML);
    }
    const standing = fresh.getElementById("standing");
    if (standing) replace(document.getElementById("standing"), standing.innerHTML);
    if (!fresh.getElementById("main").dataset.stream) close();
  }

  function take(event) {
    say("", false);
    const parts = JSON.parse(event.data);
    for (const [name, html] of Object.entries(parts)) {
      const part = document.getElementById(name);
      if (name === "version") {
        if (version !== null && version !== html || html === "ended") reload().catch(() => {});
        version = html;
      } else if (part) {
        late.delete(part);
        if (selecting(part)) late.set(part, html);
        else replace(part, html);
      }
    }
    for (const plots of document.querySelectorAll("[data-live]")) drawSoon(plots);
  }

  const late = new Map(); // parts that somebody was about to copy from

  function catchUp() {
    for (const [part, html] of late) {
      if (selecting(part)) continue;
      late.delete(part);
      replace(part, html);
    }
  }

  function selecting(part) { // what somebody is about to copy stays
    const chosen = document.getSelection();
    return chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode);
  }

  let source = null;
  let again = 0;

  function open() {
    if (source || !main || !main.dataset.stream || document.hidden) return;
    clearTimeout(again);
    source = new EventSource(main.dataset.stream);
    source.onmessage = take;
    source.onerror = () => {
      const clock = new Date().toLocaleTimeString();
      if (source.readyState === EventSource.CONNECTING) {
        if (!news.textContent) say(`The daemon has not answered since ${clock}; this is what it last said. Trying again…`, true);
        return;
      }
      close();
      fetch(main.dataset.stream, { headers: { Accept: "text/plain" }, signal: AbortSignal.timeout(2000) }).then(async (answer) => {
        if (answer.status === 401) say("Your session has ended: make a new link with 'stoker ui'.", true);
        else if (!answer.ok) say(await answer.text(), true);
      }).catch(() => {});
      again = setTimeout(open, 5000);
    };
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  // A log that follows.

  async function follow(log) {
    let { file, offset } = log.dataset;
    const where = document.getElementById("log-where");
    const text = log.firstChild || log.appendChild(document.createTextNode(""));
    log.scrollTop = log.scrollHeight;
    for (;;) {
      if (document.hidden) {
        await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
        continue;
      }
      try {
        const answer = await fetch(`${log.dataset.log}?${new URLSearchParams(file ? { file, offset } : {})}`);
        if (!answer.ok) throw new Error(answer.statusText);
        const piece = await answer.json();
        if (piece.why) {
          where.textContent = piece.why;
          await pause(15000);
          continue;
        }
        const bottom = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        if (piece.text && !text.data && log.previousElementSibling.matches(".empty")) log.previousElementSibling.remove();
        if (piece.text) text.data = (text.data + piece.text).slice(-1e6);
        if (bottom) log.scrollTop = log.scrollHeight;
        if (piece.path) where.textContent = `of lease ${piece.lease} on ${piece.node}, ${piece.path}`;
        ({ file, offset } = piece);
        if (piece.done) return;
        await pause(piece.text ? 1000 : 2000);
      } catch {
        await pause(3000);
      }
    }
  }

  const pause = (milliseconds) => new Promise((go) => setTimeout(go, milliseconds));

  // Plots.

  const LIGHT = ["#0067a3", "#b34d00", "#007a58", "#9c4a7d", "#6b4f9e", "#8a5a00", "#1f6f96", "#6b6400"];
  const DARK = ["#56b4e9", "#ff9a5c", "#4fc9a4", "#e79ac6", "#b49ae8", "#e6b450", "#8fc7e8", "#d8cf5a"];
  const DASHES = [[], [6, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4], [1, 4], [8, 2, 1, 2]]; // colour is never alone
  const SPANS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 432000, 864000, 1728000, 8640000];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // holder: [uPlot]
  const due = new Map();

  function draw(holder, plots) {
    for (const old of drawn.get(holder) || []) old.destroy();
    holder.replaceChildren();
    drawn.set(holder, plots.filter((plot) => plot.series.some((one) => one.x.length)).map((plot) => drawOne(holder, plot)));
    if (!holder.childElementCount) {
      const empty = document.createElement("p");
      empty.className = "empty";
      empty.textContent = "It has reported nothing to draw yet.";
      holder.append(empty);
    }
  }

  function drawOne(holder, plot) {
    const box = holder.appendChild(document.createElement("div"));
    box.className = "plot";
    const heading = box.appendChild(document.createElement("h3"));
    heading.textContent = plot.title;
    const place = box.appendChild(document.createElement("div"));
    const style = getComputedStyle(document.documentElement);
    const [ink, line] = [style.getPropertyValue("--soft").trim(), style.getPropertyValue("--line").trim()];
    const colours = dark.matches ? DARK : LIGHT;
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
    const up = { ...axis, size: 62, values: (_, ticks) => ticks.map(short) };
    const across = { ...axis, size: 34, values: (_, ticks) => ticks.map(short) };
    if (plot.unit === "s") Object.assign(across, { incrs: SPANS, values: (_, ticks) => ticks.map(duration) });
    if (plot.time) across.values = (_, ticks, at, space, step) => ticks.map((tick) => clock(tick, step));
    const number = (_, value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(5))));
    const x = { label: plot.time ? "time" : plot.unit === "s" ? "after" : plot.unit || plot.title.replace(/^by /, "") };
    const one = plot.time ? (at) => new Date(at * 1000).toLocaleString() : plot.unit === "s" ? duration : String;
    x.value = (_, value) => (value === null || value === undefined ? "–" : one(value));
    const series = plot.series.map((one, n) => ({
      label: one.name, stroke: colours[n % 8], dash: DASHES[n % 8], width: 1.5, spanGaps: true, value: number,
      points: { show: one.x.length < 15 }, paths: plot.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
    }));
    const options = {
      width: Math.max(place.clientWidth, 200), height: 220, scales: { x: { time: Boolean(plot.time) } }, axes: [across, up],
      series: [x, ...series], cursor: { drag: { x: true, y: false } },
    };
    const data = plot.series.length === 1 ? rising(plot.series[0]) : uPlot.join(plot.series.map(rising));
    const made = new uPlot(options, data, place);
    new ResizeObserver(() => {
      const width = Math.max(place.clientWidth, 200);
      if (width !== made.width) made.setSize({ width, height: 220 });
    }).observe(place);
    return made;
  }

  function clock(at, step) {
    const when = new Date(at * 1000);
    const two = (number) => String(number).padStart(2, "0");
    if (step >= 86400) return `${two(when.getMonth() + 1)}-${two(when.getDate())}`;
    return `${two(when.getHours())}:${two(when.getMinutes())}${step < 60 ? `:${two(when.getSeconds())}` : ""}`;
  }

  function short(value) {
    if (value === null || value === undefined) return "–";
    const [size, unit] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([least]) => Math.abs(value) >= least) || [1, ""];
    return `${Number((value / (unit === "k" ? 1e3 : size)).toPrecision(4))}${unit}`;
  }

  function rising(one) { // a job that begins anew goes back: the newest value of a step counts
    const values = new Map(one.x.map((at, n) => [at, one.y[n]]));
    const steps = [...values.keys()].sort((a, b) => a - b);
    return [steps, steps.map((at) => values.get(at))];
  }

  async function load(holder) {
    if (holder.dataset.plot) return draw(holder, [JSON.parse(holder.dataset.plot)]);
    const answer = await fetch(holder.dataset.plots);
    if (answer.ok) draw(holder, (await answer.json()).plots);
    return undefined;
  }

  function drawSoon(holder) { // of a job that goes on: now and then
    if (due.has(holder)) return;
    due.set(holder, setTimeout(() => {
      due.delete(holder);
      if (!document.hidden && !holder.matches(":hover")) load(holder).catch(() => {});
    }, 5000));
  }

  const plots = () => document.querySelectorAll("[data-plots], [data-plot]");

  // Beginning.

  tellTimes(document);
  setInterval(() => { if (!document.hidden) { catchUp(); tellTimes(document); } }, 1000);
  open();
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else { tellTimes(document); open(); } });
  for (const log of document.querySelectorAll("[data-log]")) follow(log);
  for (const holder of plots()) load(holder).catch(() => {});
  dark.addEventListener("change", () => { for (const holder of plots()) load(holder).catch(() => {}); });
  const question = document.getElementById("q");
  if (question) {
    question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) question.form.requestSubmit();
    });
  }
})();
