"use strict";
// The state of all tunnels, every two seconds; curves of the peers that are open. Text from the tunnel goes through
// textContent only.
const POLL_MS = 2000, DAY_REFRESH_MS = 60000, HEIGHT = 110, OPEN_PEERS = 4;
const METRICS = [
  { key: "rate", name: "Rate", unit: "Mbit/s", series: ["out", "in"], least: 1 },
  { key: "rtt", name: "RTT", unit: "ms", series: ["rtt"], least: 10 },
  { key: "loss", name: "Loss", unit: "%", series: ["loss"], least: 1 },
  { key: "queue", name: "Queue", unit: "ms", series: ["queue"], least: 10 },
  { key: "share", name: "Share", unit: "%", series: ["share"], least: 100 },
];
const FIELDS = ["out", "in", "rtt", "loss", "queue", "share"];
let span = "now", lastTime = 0, answered = Date.now();
const tunnels = new Map();

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }
function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}
function period(seconds) {
  const d = Math.floor(seconds / 86400), h = Math.floor(seconds / 3600) % 24, m = Math.floor(seconds / 60) % 60;
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min ${seconds % 60} s` : `${seconds} s`;
}
const bits = (value) => value === undefined || value === null ? null : value / 1e6;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

async function get(url) {
  const controller = new AbortController(), timer = setTimeout(() => controller.abort(), 8000);
  try {
    const answer = await fetch(url, { signal: controller.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status} ${(await answer.text()).trim()}`);
    return await answer.json();
  } finally { clearTimeout(timer); }
}

// The curves of a path, with a chart for each metric.
class Curves {
  constructor(peer, tunnel, name) {
    Object.assign(this, { peer, tunnel, name, charts: [], data: null });
    this.root = element("div", "charts");
    for (const metric of METRICS) {
      const box = element("div", "chart " + metric.key), title = element("p"), values = [];
      title.append(metric.name + " ");
      for (const series of metric.series) {
        if (metric.series.length > 1) title.append(element("span", "key k-" + series), series + " ");
        const value = element("b", "", "–");
        values.push(value);
        title.append(value, " ");
      }
      title.append(metric.unit);
      box.append(title);
      this.root.append(box);
      this.charts.push({ metric, box, values, plot: null });
    }
  }
  url() {
    const part = encodeURIComponent;
    return `/api/history?tunnel=${part(this.tunnel)}&peer=${part(this.peer.name)}&path=${part(this.name)}&span=${span}`;
  }
  async load() {
    const asked = span;
    try {
      const data = await get(this.url());
      if (asked === span) { this.data = data; this.draw(); }
    } catch (error) { this.data = null; }
  }
  // Adds a point of the last ten minutes.
  add(time, point) {
    if (!this.data || span !== "now" || (this.data.t.length && this.data.t[this.data.t.length - 1] >= time)) return;
    this.data.t.push(time);
    FIELDS.forEach((field) => this.data[field].push(point[field] ?? null));
    while (this.data.t.length && this.data.t[0] < time - 600) {
      this.data.t.shift();
      FIELDS.forEach((field) => this.data[field].shift());
    }
  }
  most(metric) {
    let most = metric.least;
    if (metric.key === "share") return 100;
    for (const field of metric.series) for (const value of this.data?.[field] ?? []) if (value > most) most = value;
    return most;
  }
  draw() {
    if (!this.data || !this.root.isConnected) return;
    for (const chart of this.charts) {
      const data = [this.data.t, ...chart.metric.series.map((field) => this.data[field])];
      if (chart.plot) chart.plot.setData(data); else chart.plot = this.plot(chart, data);
      if (chart.plot.cursor.idx === null || chart.plot.cursor.idx === undefined) this.show(chart, data[0].length - 1);
    }
  }
  show(chart, at) {
    chart.metric.series.forEach((field, index) => setText(chart.values[index], figure(this.data?.[field][at])));
  }
  plot(chart, data) {
    const dim = colour("dim"), line = colour("line");
    const axis = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    return new uPlot({
      width: Math.max(chart.box.clientWidth, 100), height: HEIGHT, legend: { show: false }, padding: [6, 14, 0, 0],
      cursor: { sync: { key: "time" }, y: false, drag: { x: false, y: false }, points: { size: 5 } },
      scales: {
        x: { range: () => [lastTime - (span === "day" ? 86400 : 600), lastTime] },
        y: { range: () => [0, this.peer.most(chart.metric) * 1.05] },
      },
      axes: [
        { ...axis, size: 20, space: 70, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 38, space: 30, gap: 3 },
      ],
      series: [{}, ...chart.metric.series.map((field) => ({ stroke: colour(field), width: 1.5, points: { show: false } }))],
      hooks: { setCursor: [(plot) => this.show(chart, plot.cursor.idx ?? data[0].length - 1)] },
    }, data, chart.box);
  }
  clear() { for (const chart of this.charts) { chart.plot?.destroy(); chart.plot = null; } }
  resize() {
    for (const { plot, box } of this.charts) {
      const width = Math.max(box.clientWidth, 100);
      if (plot && plot.width !== width) plot.setSize({ width, height: HEIGHT });
    }
  }
}

class Path {
  constructor(peer, tunnel, name) {
    this.root = element("section", "path");
    const title = element("h3");
    this.state = element("span", "state");
    this.verdict = element("span", "verdict");
    title.append(element("span", "", name), this.state, this.verdict);
    this.curves = new Curves(peer, tunnel, name);
    this.root.append(title, this.curves.root);
  }
  update(time, now) {
    setText(this.state, now.state);
    const isBad = !now.up, isWarn = now.has_trouble || now.state === "standby";
    this.state.className = "state " + (isBad ? "bad" : isWarn ? "warn" : "good");
    setText(this.verdict, now.verdict);
    this.state.title = now.remote;
    const alive = (value) => now.up ? value : null;
    this.curves.add(time, {
      out: bits(now.sent_bits_per_s), in: bits(now.received_bits_per_s),
      rtt: alive(now.srtt_us === null ? null : now.srtt_us / 1000), loss: alive(now.loss === null ? null : now.loss * 100),
      queue: alive(now.queue_us === null ? null : now.queue_us / 1000), share: now.share === null ? null : now.share * 100,
    });
  }
}

class Peer {
  constructor(tunnel, name, isOpen) {
    Object.assign(this, { tunnel, name, paths: new Map() });
    this.root = element("details");
    this.root.open = isOpen;
    this.title = element("summary");
    this.about = element("small");
    this.title.append(name + " ", this.about);
    this.root.append(this.title);
    this.root.addEventListener("toggle", () => this.load());
  }
  most(metric) { return Math.max(...[...this.paths.values()].map((path) => path.curves.most(metric))); }
  update(time, now) {
    const up = now.paths.filter((path) => path.up).length;
    const sum = (field) => figure(now.paths.reduce((sum, path) => sum + (bits(path[field]) ?? 0), 0));
    const session = now.session_age_s === null ? "" : ` · handshake ${period(now.session_age_s)} ago`;
    setText(this.about, `${up} of ${now.paths.length} paths up · out ${sum("sent_bits_per_s")} · in ${sum("received_bits_per_s")} Mbit/s${session}`);
    if (now.no_path) setText(this.about, `no path: ${now.no_path}`);
    this.about.className = now.no_path || up === 0 && now.paths.length ? "bad" : "";
    keep(this.paths, now.paths, (path) => {
      const made = new Path(this, this.tunnel, path.name);
      this.root.append(made.root);
      if (this.root.open) made.curves.load();
      return made;
    });
    for (const path of now.paths) this.paths.get(path.name).update(time, path);
    if (this.root.open) for (const path of this.paths.values()) path.curves.draw();
  }
  load() { if (this.root.open) for (const path of this.paths.values()) path.curves.load(); }
  each(action) { for (const path of this.paths.values()) action(path.curves); }
}

class Tunnel {
  constructor(name) {
    Object.assign(this, { name, peers: new Map() });
    this.root = element("section");
    const title = element("h2");
    this.about = element("small");
    title.append(name + " ", this.about);
    this.trouble = element("p", "trouble");
    this.list = element("div");
    this.more = element("p");
    this.log = element("details");
    this.log.append(element("summary", "", "Events"));
    this.events = element("ul", "events");
    this.log.append(this.events);
    this.root.append(title, this.trouble, this.list, this.more, this.log);
  }
  update(time, now) {
    setText(this.about, now.trouble ? "" : `${now.mode} · up ${period(now.uptime_s)} · MTU ${now.mtu_bytes}`);
    setText(this.trouble, now.trouble ?? "");
    if (!now.trouble) {
      keep(this.peers, now.peers, (peer) => {
        const made = new Peer(this.name, peer.name, this.peers.size < OPEN_PEERS);
        this.list.append(made.root);
        return made;
      });
      for (const peer of now.peers) this.peers.get(peer.name).update(time, peer);
    }
    setText(this.more, now.more ? `${now.more} more peers are in mpt peer list and in /metrics.` : "");
    this.show(now.events);
  }
  show(events) {
    const newest = events.length ? events[0].time_ms + ":" + events.length : "";
    this.log.hidden = !events.length;
    if (this.newest === newest) return;
    this.newest = newest;
    this.events.replaceChildren(...events.map((event) => {
      const line = element("li"), names = event.peer ? `${event.peer}/${event.path}: ` : "";
      const what = event.kind === "path" ? `${names}${event.from} → ${event.to}`
        : event.kind === "mtu" ? `the tunnel's MTU is ${event.mtu_bytes}`
        : event.kind === "limit_warning" ? `${names}80 % of the limit of the month are used up`
        : event.kind === "limit" ? `${names}the limit of the month is used up` : event.kind;
      line.append(element("time", "", new Date(event.time_ms).toLocaleString()), what);
      return line;
    }));
  }
}

// Makes what is new in a list, and removes what is gone from it.
function keep(map, list, make) {
  const names = new Set(list.map((item) => item.name));
  for (const [name, known] of map) if (!names.has(name)) { known.root.remove(); map.delete(name); }
  for (const item of list) if (!map.has(item.name)) map.set(item.name, make(item));
}
function eachCurves(action) { for (const tunnel of tunnels.values()) for (const peer of tunnel.peers.values()) peer.each(action); }
function reload() { for (const tunnel of tunnels.values()) for (const peer of tunnel.peers.values()) peer.load(); }

async function poll() {
  const summary = document.getElementById("summary");
  try {
    const now = await get("/api/now");
    answered = Date.now();
    lastTime = now.time;
    keep(tunnels, now.tunnels, (tunnel) => {
      const made = new Tunnel(tunnel.name);
      document.getElementById("tunnels").append(made.root);
      return made;
    });
    for (const tunnel of now.tunnels) tunnels.get(tunnel.name).update(now.time, tunnel);
    const paths = now.tunnels.flatMap((tunnel) => tunnel.peers.flatMap((peer) => peer.paths));
    const up = paths.filter((path) => path.up).length;
    const silent = now.tunnels.filter((tunnel) => tunnel.trouble).map((tunnel) => tunnel.name);
    setText(summary, silent.length ? `no data of ${silent.join(", ")}`
      : now.tunnels.length ? `${up} of ${paths.length} paths up` : "no tunnel is running on this host");
    summary.className = now.tunnels.length && !silent.length && up === paths.length ? "" : "bad";
  } catch (error) {
    setText(summary, `no answer from mpt web for ${Math.round((Date.now() - answered) / 1000)} s: ${error.message}`);
    summary.className = "bad";
  }
}
function tick() { if (!document.hidden) poll(); }

// The time shown is in the address, so that it can be bookmarked.
function setSpan(chosen) {
  span = chosen;
  history.replaceState(null, "", span === "day" ? "#day" : "#");
  document.querySelectorAll("#span button").forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.span === span)));
  reload();
}
for (const button of document.querySelectorAll("#span button")) {
  button.addEventListener("click", () => setSpan(button.dataset.span));
}
if (location.hash === "#day") setSpan("day");
document.addEventListener("visibilitychange", () => { if (!document.hidden) { poll(); reload(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => eachCurves((curves) => { curves.clear(); curves.draw(); }));
new ResizeObserver(() => eachCurves((curves) => curves.resize())).observe(document.getElementById("tunnels"));
poll();
setInterval(tick, POLL_MS);
setInterval(() => { if (!document.hidden && span === "day") reload(); }, DAY_REFRESH_MS);
