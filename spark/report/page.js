// Sorting and filtering of tables. A cell's data-v is what it sorts by; without one, its text.
"use strict";
for (const box of document.querySelectorAll(".table")) {
  const table = box.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
  const value = (row, at) => { const cell = row.cells[at]; return cell.dataset.v ?? cell.textContent; };
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.classList.contains("n") || head.classList.contains("t");
    const up = head.ariaSort ? head.ariaSort !== "ascending" : !numbers;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    rows.sort((a, b) => {
      const x = value(a, at), y = value(b, at);
      if ((x === "") !== (y === "")) return x === "" ? 1 : -1;
      return (up ? 1 : -1) * (numbers ? x - y : x.localeCompare(y));
    });
    body.append(...rows);
  }));
  const input = box.querySelector("input"), shown = box.querySelector("[data-shown]");
  input?.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length}`;
  });
}
const open = () => document.getElementById(location.hash.slice(1))?.setAttribute("open", "");
addEventListener("hashchange", open);
open();
