/* What each change did in the open table: matched pairs and R-groups, measured and predicted. */

async function drawSeries() {
  if (!byId("series").open || !table.file) return;
  const core = byId("core").value.trim();
  const asked = `${table.file.key} ${table.file.column} ${core}`;
  if (table.series === asked) return;
  table.series = asked;
  const thisTable = table;
  byId("sar").replaceChildren();
  byId("sar-progress").textContent = "Looking for pairs and R-groups ...";
  const done = await trying(async () => {
    say("");
    const sar = await ask("series", { table: table.file, core }, "series");
    if (thisTable !== table) return;
    byId("sar").replaceChildren(...(sar ? structureActivity(sar, {
      name: (place) => labelOfRow(table.rows[place]),
      show: (place) => add(table.rows[place].smiles, table.rows[place].name || `row ${place + 1}`, -1),
      drawn: (picture) => mini({ draw: picture }),
      leave: () => {},
    }) : [element("p", {}, "No exchange of a part occurs twice, and no four compounds share a core.")]));
  });
  if (thisTable !== table) return;
  byId("sar-progress").textContent = "";
  if (!done) table.series = "";
}

byId("series").addEventListener("toggle", drawSeries);
byId("core-form").addEventListener("submit", (event) => { event.preventDefault(); drawSeries(); });
