// Refreshes the live part of a page, and draws lines of what it saw. Everything works without this file.
"use strict";
const EVERY_MS = 5000, POINTS = 720;
const live = document.getElementById("live");

function lines(root) {
  for (const svg of root.querySelectorAll("svg[data-line]")) {
    const key = "line " + svg.dataset.line, now = Date.now();
    let points = [];
    try { points = JSON.parse(sessionStorage.getItem(key) || "[]"); } catch { points = []; }
    // A clock that was set back leaves points in the future.
    points = points.filter(([at]) => at > now - 3600e3 && at <= now);
    points.push([now, Number(svg.dataset.value)]);
    points = points.slice(-POINTS);
    try { sessionStorage.setItem(key, JSON.stringify(points)); } catch { /* the line stays short */ }
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    const most = Math.max(1, ...points.map(([, value]) => value));
    const text = points.map(([at, value]) =>
      `${last > first ? 100 * (at - first) / (last - first) : 100},${22 - 20 * value / most}`).join(" ");
    svg.querySelector("polyline").setAttribute("points", text);
    svg.querySelector("title").textContent =
      `${points[0][1]} ready ${Math.round((last - first) / 60e3)} min ago, now ${points.at(-1)[1]}, at most ${most}`;
  }
}

async function refresh() {
  if (document.hidden || live.contains(document.activeElement) || String(getSelection())) return;
  try {
    const answer = await fetch(location.href, {signal: AbortSignal.timeout(4 * EVERY_MS)});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = answer.ok && page.getElementById("live");
    if (!fresh) throw new Error(answer.status);  // an error, or the page that asks to sign in
    const open = live.querySelector("details")?.open, details = fresh.querySelector("details");
    if (details && open !== undefined) details.open = open;
    live.replaceChildren(...fresh.childNodes);
    live.dataset.refresh = fresh.dataset.refresh || "";
    document.body.classList.remove("stale");
    lines(live);
  } catch { document.body.classList.add("stale"); }
}

async function refreshing() {
  await refresh();
  if (live.dataset.refresh) setTimeout(refreshing, EVERY_MS);
}

if (live) { lines(live); if (live.dataset.refresh) setTimeout(refreshing, EVERY_MS); }
