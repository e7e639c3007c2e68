// Search in a page that is opened as a file: a browser starts no Worker there, so the theme's search runs in a hidden frame.
// Without this the theme's plugin `offline` loads iframe-worker from another host.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inside.document.createElement("script")
      this.loaded = new Promise(resolve => script.addEventListener("load", resolve))
      script.src = url
      this.inside.document.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
