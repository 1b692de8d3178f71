// Search on pages that are opened as files. A browser starts no worker from a file, so that the worker's source is in
// a script that the site has beside the index: search/worker.js, which docs/site.py writes.
// The plug-in "offline" loads a script from elsewhere unless one called iframe-worker is configured.
if (location.protocol === "file:") {
  const source = new URL("search/worker.js", document.currentScript.src);
  document.write(`<script src="${source.href}"><\/script>`);
  const FileWorker = window.Worker;
  window.Worker = function () {
    return new FileWorker(URL.createObjectURL(new Blob([searchWorker], { type: "text/javascript" })));
  };
}
