//! The only sanctioned waits of a test: for a condition, until a deadline; and for random moments.

use std::time::{Duration, Instant};

/// Pause between looks: short, because tests wait for kernels and local processes.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until `condition` holds, looking again and again; panics when it does not within `deadline`.
#[track_caller]
pub fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) {
    eventually_some(deadline, || condition().then_some(()));
}

/// Waits until `look` finds something and returns it; panics when it does not within `deadline`.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "this is the replacement that the ban names")]
pub fn eventually_some<T>(deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < deadline, "what was waited for did not happen within {deadline:?}");
        std::thread::sleep(PAUSE);
    }
}

/// Lets time pass: until the random moment at which a test breaks something, or between the packets of a load. Nothing may be expected to have
/// happened afterwards: for that there is [`eventually`].
#[expect(clippy::disallowed_methods, reason = "the moment is to be anywhere, so that no event could name it")]
pub fn let_pass(duration: Duration) {
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        eventually(Duration::from_secs(10), || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }

    #[test]
    #[should_panic(expected = "did not happen within 5ms")]
    fn a_condition_that_never_holds_fails_the_test() {
        eventually(Duration::from_millis(5), || false);
    }
}
