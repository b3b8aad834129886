//! Keeps an interval between this node's writes: peers of v0.20 process only the first event of an
//! answer and lose those that follow at once (flannel.md section 0 item 2, section 12 item 4).

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Shortest interval between two writes.
const SPACE: Duration = Duration::from_millis(200);

/// The time of the next permitted write.
#[derive(Default)]
pub(crate) struct WriteInterval {
    next: Cell<Option<Instant>>,
}

// === impl WriteInterval ===

impl WriteInterval {
    /// Waits for this writer's turn; writers queue in order of their calls.
    pub(crate) async fn turn(&self) {
        let now = Instant::now();
        let mine = self.next.get().map_or(now, |next| next.max(now));
        self.next.set(Some(mine + SPACE));
        if mine > now {
            tokio::time::sleep_until(mine).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn writes_are_a_fifth_of_a_second_apart() {
        let (write_interval, begun) = (WriteInterval::default(), Instant::now());
        write_interval.turn().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        tokio::join!(write_interval.turn(), write_interval.turn());
        assert_eq!(begun.elapsed().as_millis() / 10 * 10, 400);
        tokio::time::sleep(SPACE * 2).await;
        let later = Instant::now();
        write_interval.turn().await;
        assert_eq!(later.elapsed(), Duration::ZERO);
    }
}
