// Requests of which only the newest counts, as those of a slider in motion.

// Returns a function that starts a request. At most one is under way; the newest waits for it, and
// those in between are never sent. request() returns a promise.
export function onlyNewest(request) {
  let isBusy = false, isWaiting = false;
  return async function start() {
    if (isBusy) {
      isWaiting = true;
      return;
    }
    isBusy = true;
    try {
      await request();
    } finally {
      isBusy = false;
    }
    if (isWaiting) {
      isWaiting = false;
      start();
    }
  };
}
