// Between two events of the server: counts the shown times on, and says whether the page is live. Without it the page
// shows the moment at which it was loaded.
"use strict";

const ahead = Number(document.body.dataset.now) - Date.now() / 1000;

function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit, less, part] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"]])
    if (whole >= size) {
      const rest = Math.floor((whole % size) / less);
      return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${part}` : "");
    }
  return whole >= 60 ? `${Math.floor(whole / 60)} min` : `${whole} s`;
}

function count() {
  const now = Date.now() / 1000 + ahead;
  for (const one of document.querySelectorAll("[data-since], [data-left]")) {
    const { since, left } = one.dataset;
    const text = span(since === undefined ? left - now : now - since);
    if (one.textContent !== text) one.textContent = text;
  }
  for (const one of document.querySelectorAll("meter[data-until]")) one.value = one.dataset.until - now;
}

function connected(is) {
  const live = document.querySelector(".live");
  live.dataset.state = is ? "live" : "waiting";
  const text = is ? "Live" : "Reconnecting…";
  if (live.textContent !== text) live.textContent = text;
}

// A screen reader hears of what is urgent when that changes, not of every round.
let said = null;
function announce() {
  const urgent = document.querySelector("[data-say]")?.dataset.say.trim();
  if (urgent === undefined || urgent === said) return;
  if (said !== null) document.getElementById("said").textContent = urgent || "Nothing is urgent any more.";
  said = urgent;
}

if (document.querySelector("[sse-connect]")) {
  // what the reader has opened stays open
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name) => name !== "open";
  document.body.addEventListener("htmx:sseOpen", () => connected(true));
  document.body.addEventListener("htmx:sseError", () => connected(false));
  document.body.addEventListener("htmx:sseMessage", () => { count(); announce(); });
  announce();
}
setInterval(count, 1000);
