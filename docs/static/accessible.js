/* Name what the theme leaves open to readers of the page who use keys or a screen reader. */

document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll('[role="heading"]:not([aria-level])')) {
    caption.setAttribute("aria-level", "2");
  }
  for (const [drawer, name] of [[".sidebar-drawer", "All pages"], [".toc-drawer", "On this page"]]) {
    document.querySelector(drawer)?.setAttribute("aria-label", name);
  }
  for (const list of document.querySelectorAll("dl:not(:has(> dt))")) { // the lines of a signature
    list.setAttribute("role", "presentation");
  }
  const reach = () => { // what scrolls sideways has to be reached by the Tab key
    for (const part of document.querySelectorAll("pre, .table-wrapper, .output")) {
      if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    }
  };
  reach();
  addEventListener("resize", reach);
});
