// Live pages: the server says that time has passed, the page fetches itself again and puts the fresh pieces in place.
// What comes from the server is parsed as a document that runs nothing; no text is ever taken for markup here.
"use strict";

(() => {
  const root = document.documentElement.dataset.root || "";
  const regions = () => [...document.querySelectorAll("[data-live]")];
  const liveSwitch = document.getElementById("live-switch");
  const liveText = document.getElementById("live-text");
  const note = document.getElementById("live-note");
  const POLL_MS = 5000;
  const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";
  let isPaused = readCookie("evenflow_live") === "paused";
  let isLoading = false;
  let stream = null;
  let poll = null;

  function readCookie(name) {
    const found = document.cookie.split("; ").find((each) => each.startsWith(`${name}=`));
    return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
  }

  function writeCookie(name, value) {
    document.cookie = `${name}=${encodeURIComponent(value)}; path=${root || "/"}; max-age=31536000; samesite=strict`;
  }

  // Somebody who types, or has a form open, is not interrupted.
  function isInUse(region) {
    const focus = document.activeElement;
    if (focus && region.contains(focus) && focus.matches("input, select, textarea")) return true;
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && region.contains(selection.anchorNode)) return true;
    return region.querySelector("details.change[open]") !== null;
  }

  // What an element is, not where it is: rows come and go between two looks, and whoever is about to press Enter on
  // the button of one queue must not find himself on that of another.
  function identity(element) {
    const row = element.closest("[data-key]");
    const said = element.getAttribute("aria-label") || (element.localName === "button" ? element.textContent : "");
    const parts = [element.localName, row ? row.dataset.key : "", said];
    return JSON.stringify([...parts, element.getAttribute("href"), element.getAttribute("name")]);
  }

  // The elements of a kind by what they are; those that are alike are told apart by their order.
  function known(region, what) {
    const counts = new Map();
    const found = new Map();
    for (const each of region.querySelectorAll(what)) {
      const key = identity(each);
      counts.set(key, (counts.get(key) || 0) + 1);
      found.set(`${key} ${counts.get(key)}`, each);
    }
    return found;
  }

  function put(region, fresh) {
    if (region.isEqualNode(fresh)) return;
    const focus = [...known(region, FOCUSABLE)].find(([, each]) => each === document.activeElement);
    const details = known(region, "details");
    const scrolls = known(region, ".scroll");
    const lefts = new Map([...scrolls].map(([key, each]) => [key, each.scrollLeft]));
    const adopted = document.adoptNode(fresh);
    region.replaceWith(adopted);
    known(adopted, "details").forEach((each, key) => {
      if (details.has(key)) each.open = details.get(key).open;
    });
    known(adopted, ".scroll").forEach((each, key) => {
      if (lefts.get(key)) each.scrollLeft = lefts.get(key);
    });
    if (focus) known(adopted, FOCUSABLE).get(focus[0])?.focus({ preventScroll: true });
  }

  function refresh() {
    if (isPaused || isLoading || document.hidden || !regions().length) return;
    isLoading = true;
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.timeout = 10000;
    request.onload = () => {
      const page = request.response;
      if (request.status !== 200 || !page || request.responseURL.includes("/login")) {
        say(request.status === 200 ? "Please log in again." : "The server does not answer as it should.");
        return;
      }
      for (const region of regions()) {
        const fresh = page.getElementById(region.id);
        if (fresh && !isInUse(region)) put(region, fresh);
      }
      say("");
      document.documentElement.dataset.fresh = String(Number(document.documentElement.dataset.fresh || 0) + 1);
    };
    request.onerror = request.ontimeout = () => say("The server is away; this page shows how it was.");
    request.onloadend = () => { isLoading = false; };
    request.send();
  }

  function say(text) {
    if (note && note.textContent !== text) note.textContent = text;
  }

  function listen() {
    if (!window.EventSource) return fallBack();
    stream = new EventSource(`${root}/live`);
    stream.addEventListener("pulse", () => { stopPolling(); refresh(); });
    stream.onerror = fallBack;
  }

  function fallBack() {
    if (poll === null) poll = setInterval(refresh, POLL_MS);
  }

  function stopPolling() {
    if (poll !== null) clearInterval(poll);
    poll = null;
  }

  function stop() {
    if (stream) stream.close();
    stream = null;
    stopPolling();
  }

  function showSwitch() {
    liveSwitch.setAttribute("aria-pressed", String(!isPaused));
    liveText.textContent = isPaused ? "Paused" : "Live";
    liveSwitch.title = isPaused ? "Update this page by itself" : "Do not update this page by itself";
  }

  function startLive() {
    if (!liveSwitch || !regions().length) return;
    liveSwitch.hidden = false;
    showSwitch();
    if (!isPaused) listen();
    liveSwitch.addEventListener("click", () => {
      isPaused = !isPaused;
      writeCookie("evenflow_live", isPaused ? "paused" : "on");
      showSwitch();
      if (isPaused) stop(); else { listen(); refresh(); }
    });
    document.addEventListener("visibilitychange", () => {
      if (isPaused) return;
      if (document.hidden) stop(); else { listen(); refresh(); }
    });
    window.addEventListener("pagehide", stop);
  }

  function startTheme() {
    const button = document.getElementById("theme-switch");
    if (!button) return;
    button.hidden = false;
    button.addEventListener("click", () => {
      const page = document.documentElement;
      const isDark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      page.dataset.theme = isDark ? "light" : "dark";
      writeCookie("evenflow_theme", page.dataset.theme);
    });
  }

  // On a narrow screen the menu scrolls: the page that is shown must be in sight there. Not by `scrollIntoView`, which
  // would take the first Tab away from the link that skips the menu.
  function showCurrent() {
    const current = document.querySelector(".menu [aria-current]");
    if (!current) return;
    const menu = current.parentElement;
    const left = current.getBoundingClientRect().left - menu.getBoundingClientRect().left;
    menu.scrollLeft += left - (menu.clientWidth - current.offsetWidth) / 2;
  }

  showCurrent();
  startLive();
  startTheme();
})();
