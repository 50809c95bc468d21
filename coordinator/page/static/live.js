// The stream of news: opened again after every loss, later and later, until somebody logs out.

const SILENT_MS = 45_000; // the coordinator says something every 15 s
const LONGEST_MS = 20_000;

/** Listen to the coordinator.
 *
 * `hear(kind, data)` is called with each piece of news, `tell(isThere)` when the line is lost or
 * found, `check()` after a loss: whether it is worth while to try again. Returns what ends it.
 */
export function listen(kinds, hear, tell, check) {
  let [source, timer, watch, tries, isOver] = [null, 0, 0, 0, false];

  function alive() {
    clearTimeout(watch);
    watch = setTimeout(lost, SILENT_MS);
  }

  function open() {
    source = new EventSource("/v1/operator/events");
    for (const kind of kinds) {
      source.addEventListener(kind, (event) => {
        tries = 0;
        alive();
        tell(true);
        hear(kind, JSON.parse(event.data));
      });
    }
    source.addEventListener("beat", alive);
    source.onerror = lost;
    alive();
  }

  async function lost() {
    source.close();
    clearTimeout(watch);
    clearTimeout(timer);
    if (isOver) return;
    tell(false);
    const pause = Math.random() * Math.min(LONGEST_MS, 500 * 2 ** tries);
    tries += 1;
    timer = setTimeout(async () => {
      if (!isOver && (await check())) open();
    }, pause);
  }

  open();
  return () => {
    isOver = true;
    source.close();
    clearTimeout(watch);
    clearTimeout(timer);
  };
}
