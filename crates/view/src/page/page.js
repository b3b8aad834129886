// Replaces the sections whose HTML has changed. The server has escaped everything in it.
"use strict";
(function () {
  var main = document.getElementById("main");
  var connection = document.getElementById("connection");
  var at = document.getElementById("at");
  var pause = Number(main.dataset.poll) * 1000;
  var shown = {};

  function replace(section) {
    var element = document.getElementById(section.id);
    if (!element || shown[section.id] === section.html) { return; }
    // What has the focus, and how far tables are scrolled, stays as it was.
    var focused = element.contains(document.activeElement) ? document.activeElement.id : "";
    var scrolled = Array.from(element.querySelectorAll(".scroller"), function (it) { return [it.id, it.scrollLeft]; });
    element.innerHTML = section.html;
    scrolled.forEach(function (it) {
      var scroller = document.getElementById(it[0]);
      if (scroller) { scroller.scrollLeft = it[1]; }
    });
    var again = focused && document.getElementById(focused);
    if (again) { again.focus({ preventScroll: true }); }
    shown[section.id] = section.html;
  }

  // Announced only when it changes.
  function say(text) {
    if (connection.textContent !== text) { connection.textContent = text; }
  }

  async function poll() {
    try {
      var answer = await fetch("sections.json", { cache: "no-store", credentials: "omit" });
      if (!answer.ok) { throw new Error("status " + answer.status); }
      var page = await answer.json();
      page.sections.forEach(replace);
      at.textContent = "as of " + page.at;
      say("(updated every " + main.dataset.poll + " seconds)");
    } catch (error) {
      say("The agent does not answer; this is what it said last.");
    }
    setTimeout(poll, pause);
  }

  setTimeout(poll, pause);
})();
