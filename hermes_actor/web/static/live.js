// Live figures and changes: HTML that the server has rendered once, put into its place.
"use strict";

const MOST = 200; // changes that stay on the page

const figures = document.getElementById("figures");
const changes = document.getElementById("changes");
const state = document.getElementById("live-state");
const source = new EventSource(figures.dataset.events);

const say = (text) => {
  if (state.textContent !== text) state.textContent = text;
};

const parse = (html) => {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
};

source.addEventListener("open", () => say("Live: connected."));
source.addEventListener("error", () =>
  say(source.readyState === EventSource.CLOSED
    ? "Live: ended. Reload the page to connect again."
    : "Live: connection lost, connecting again."));
source.addEventListener("figures", (event) => {
  if (figures.tagName === "DIV") figures.replaceChildren(parse(event.data));
});
const newest = document.querySelector("#log pre");
if (newest) newest.scrollTop = newest.scrollHeight;

source.addEventListener("log", (event) => {
  const log = document.getElementById("log");
  const old = log.querySelector("pre");
  const isAtEnd = !old || old.scrollTop + old.clientHeight >= old.scrollHeight - 2;
  const [place, hadFocus] = [old && old.scrollTop, document.activeElement === old];
  log.replaceChildren(parse(event.data));
  const lines = log.querySelector("pre");
  if (!lines) return;
  lines.scrollTop = isAtEnd ? lines.scrollHeight : place;
  if (hadFocus) lines.focus({ preventScroll: true });
});
source.addEventListener("changes", (event) => {
  const lines = [...parse(event.data).children].reverse();
  changes.prepend(...lines);
  while (changes.children.length > MOST) changes.lastElementChild.remove();
});
source.addEventListener("lost", () => {
  const line = document.createElement("li");
  line.className = "gap";
  line.textContent = "Some changes were missed; the pages show what the store holds now.";
  changes.prepend(line);
});
window.addEventListener("pagehide", () => source.close());
// A page that the browser has kept is shown again: what it followed has ended.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});
