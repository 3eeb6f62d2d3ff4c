document.addEventListener("DOMContentLoaded", () => {
  // Scroll the list of pages to the current one.
  const list = document.querySelector(".sidebar-scroll")
  const current = list?.querySelector(".current-page")
  if (current) list.scrollTop += current.getBoundingClientRect().top - list.clientHeight / 2

  // A phone shows tables with sentences as lists, in which each cell has its heading. Tables with
  // many columns, or with numbers and names only, stay tables.
  for (const table of document.querySelectorAll("article table.docutils")) {
    const headings = [...table.querySelectorAll("th")].map((cell) => cell.textContent.trim())
    const cells = [...table.querySelectorAll("td")]
    const hasSentences = cells.some((cell) => cell.cellIndex && cell.textContent.length > 40)
    if (!hasSentences || headings.length > 5) continue
    table.classList.add("list-on-phone")
    if (headings.length === 2) continue
    for (const cell of cells) {
      const heading = headings[cell.cellIndex]
      const text = cell.querySelector("p")
      if (heading && cell.cellIndex && text) text.dataset.heading = `${heading}: `
    }
  }
})
