// What a reader chooses: algorithms, the x axis, the target.

const legend = document.getElementById("legend");
const field = document.getElementById("target");
const moved = document.getElementById("moved");
const perUnit = data.metric.share ? 100 : 1;
const ownText = String(Number((perUnit * data.target.value).toPrecision(5)));

for (const row of data.rows.filter((each) => each.bands)) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  const sample = document.createElementNS(svg.namespaceURI, "svg");
  sample.setAttribute("viewBox", "0 0 26 10");
  sample.setAttribute("aria-hidden", "true");
  const stroke = { class: "mean", d: "M1 5H25", "stroke-width": row.width };
  add(colours(sample, row), "path", { ...stroke, "stroke-dasharray": row.dashes });
  button.append(sample, row.label);
  button.addEventListener("click", () => {
    const isShown = state.hidden.has(row.label);
    if (isShown) state.hidden.delete(row.label);
    else state.hidden.add(row.label);
    button.setAttribute("aria-pressed", String(isShown));
    draw();
  });
  legend.append(button);
}

for (const choice of document.querySelectorAll("input[name=axis]")) {
  choice.addEventListener("change", () => {
    state.axis = choice.value;
    draw();
  });
}

function aim(target) {
  state.target = target;
  followTarget(target);
  const isOwn = target === data.target.value;
  moved.hidden = isOwn;
  const many = data.rows.some((row) => Object.keys(row.runs).length > data.mostAll);
  moved.textContent = isOwn ? "" :
    `The table and the line are at ${metricText(target)}. The notes below are about ` +
    `the report's own target, ${metricText(data.target.value)}.` +
    (many ? ` Intervals of more than ${data.mostAll} seeds are only there.` : "");
  draw();
}

field.value = ownText;
field.addEventListener("input", () => {
  const number = typed(field.value);
  const fits = Number.isFinite(number) && (!data.metric.share || (number > 0 && number <= 1));
  field.setAttribute("aria-invalid", String(!fits));
  if (fits) aim(field.value === ownText ? data.target.value : number);
});
document.getElementById("reset").addEventListener("click", () => {
  field.value = ownText;
  field.setAttribute("aria-invalid", "false");
  aim(data.target.value);
});

// Where the lines are not: rising ones end at the top.
readout.classList.toggle("on-top", data.metric.falls);
document.getElementById("interactive").hidden = false;
document.getElementById("static").hidden = true;
new ResizeObserver(() => {
  if (svg.parentElement.clientWidth !== view?.width) draw();
}).observe(svg.parentElement);
// What is folded is printed, too.
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
});
draw();
