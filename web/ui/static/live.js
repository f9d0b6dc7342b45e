"use strict";
/* Keeps the element #live of a page new by server-sent events of the page's own address, and fills in ages.

   `page` brings all lines of the element, `changes` only those that differ, and `alive` only the time of the last read.
   A hidden page closes its stream, because browsers open at most six connections to one server. */
(() => {
  const STALE_AFTER = 15, AGAIN_IN = 10;
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const live = document.getElementById("live"), stale = document.getElementById("stale");
  let lines = [], at = Number(live.dataset.at), heardAt = performance.now(), source = null, over = false;

  const sinceHeard = () => (performance.now() - heardAt) / 1000;
  const loadAgainIn = seconds => setTimeout(() => location.reload(), 1000 * seconds);
  if (live.dataset.again) loadAgainIn(Number(live.dataset.again));
  if (!live.dataset.stream) return;

  function duration(seconds) {
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    let rest = Math.round(seconds);
    const parts = [];
    for (const [unit, size] of UNITS) {
      const number = Math.floor(rest / size);
      rest %= size;
      if (number || parts.length) parts.push(number ? `${number} ${unit}` : "");
    }
    return parts.slice(0, 2).filter(Boolean).join(" ");
  }

  function fill(root) {
    const now = at + sinceHeard(), clock = new Date(1000 * at).toISOString().slice(0, 19).replace("T", " ");
    const put = (each, shown) => { if (each.textContent !== shown) each.textContent = shown; };
    for (const each of root.querySelectorAll("time.age")) put(each, duration(Math.max(0, now - Date.parse(each.dateTime) / 1000)));
    for (const each of root.querySelectorAll("time.clock")) put(each, clock);
  }

  /* Only parts that differ are replaced, so that the other parts keep the selection and the focus. */
  function show() {
    const fresh = document.createElement("template");
    fresh.innerHTML = lines.join("\n");
    fill(fresh.content);
    fill(live);
    const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
    const old = [...live.children], parts = [...fresh.content.children];
    if (old.length === parts.length) parts.forEach((each, index) => each.isEqualNode(old[index]) || old[index].replaceWith(each));
    else live.replaceChildren(fresh.content);
    if (focused && document.activeElement.id !== focused) document.getElementById(focused)?.focus({preventScroll: true});
  }

  function heard(event) {
    const told = JSON.parse(event.data);
    at = told.at;
    heardAt = performance.now();
    stale.hidden = true;
    return told;
  }

  function open() {
    heardAt = performance.now();
    source = new EventSource(live.dataset.stream);
    source.addEventListener("page", event => { lines = heard(event).lines; show(); });
    source.addEventListener("changes", event => {
      for (const [first, count, added] of heard(event).changes) lines.splice(first, count, ...added);
      show();
    });
    source.addEventListener("alive", heard);
    source.addEventListener("over", () => { over = true; source.close(); });
    source.addEventListener("reload", () => location.reload());
    source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) loadAgainIn(AGAIN_IN); });
  }

  setInterval(() => {
    if (over) return;
    stale.hidden = sinceHeard() < STALE_AFTER;
    fill(live);
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    if (over) return;
    if (source) source.close();
    source = null;
    if (!document.hidden) open();
  });
  if (!document.hidden) open();
})();
