// Browsers start no Worker for a page that is read from a file. There, a frame runs the script of the search instead.
if (location.protocol == "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      const loaded = (part, event) => new Promise((done) => part.addEventListener(event, done, { once: true }));
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.scope = loaded(frame, "load").then(async () => {
        const script = frame.contentDocument.createElement("script");
        frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        script.src = url;
        frame.contentDocument.head.append(script);
        await loaded(script, "load");
        return frame.contentWindow;
      });
      document.documentElement.append(frame);
    }
    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
