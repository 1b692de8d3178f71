"use strict";
// Draws large matrices on canvases. With fewer pixels than pairs, a pixel shows the slowest pair of its bin.
const PIXELS = 320;  // fits a phone
const matrices = JSON.parse(document.getElementById("report").textContent).matrices;

function binned(matrix) {
  const bin = Math.ceil(matrix.labels.length / PIXELS), count = Math.ceil(matrix.labels.length / bin);
  const slowest = new Array(count * count).fill(null);
  for (const cell of matrix.cells) {
    const at = Math.floor(cell[0] / bin) * count + Math.floor(cell[1] / bin);
    if (!slowest[at] || cell[2] < slowest[at][2]) slowest[at] = cell;
  }
  return {count, slowest, scale: Math.max(1, Math.floor(PIXELS / count))};
}

function draw(canvas, map, usual, steps) {
  const style = getComputedStyle(document.documentElement), pen = canvas.getContext("2d");
  const colour = (name) => style.getPropertyValue("--" + name).trim();
  const heat = [...steps, 0].map((_, step) => colour("heat" + step));
  canvas.width = canvas.height = map.count * map.scale;
  pen.fillStyle = colour("none");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  map.slowest.forEach((cell, at) => {
    if (!cell) return;
    const step = steps.findIndex((least) => cell[2] >= least * usual);
    pen.fillStyle = heat[step < 0 ? steps.length : step];
    pen.fillRect(at % map.count * map.scale, Math.floor(at / map.count) * map.scale, map.scale, map.scale);
  });
}

for (const figure of document.querySelectorAll("figure[data-matrix]")) {
  const matrix = matrices[figure.dataset.matrix], usual = Number(figure.dataset.usual);
  const steps = figure.dataset.steps.split(" ").map(Number);
  const canvas = figure.querySelector("canvas"), readout = figure.querySelector("output"), map = binned(matrix);
  const redraw = () => draw(canvas, map, usual, steps);
  const read = (event) => {
    const place = (at, size) => Math.min(map.count - 1, Math.max(0, Math.floor(at / size * map.count)));
    const row = place(event.offsetY, canvas.clientHeight), column = place(event.offsetX, canvas.clientWidth);
    const cell = map.slowest[row * map.count + column];
    readout.textContent = cell
      ? `${matrix.labels[cell[0]]} to ${matrix.labels[cell[1]]}: ${(cell[2] / 1e9).toPrecision(3)} GB/s, ${Math.round(100 * cell[2] / usual)} %`
      : "not measured";
  };
  canvas.addEventListener("pointermove", read);
  canvas.addEventListener("pointerdown", read);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
}
