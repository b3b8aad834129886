//! Notices other programs' changes of the tables of decisions and of host endpoints.

use std::time::Duration;

use russet_nft::monitor::{Event, Monitor};
use russet_policy::{decisions_table, hosts_table};

use super::{Policies, Request};

/// How long one wait for events takes; the number only bounds a thread that nothing else ends.
const WAIT: Duration = Duration::from_secs(60);
/// The pause after a failed wait.
const RETRY: Duration = Duration::from_secs(1);

/// Starts the thread that waits for events. Without nf_tables there are none.
pub fn start(policies: Policies) -> std::io::Result<()> {
    let Ok(mut monitor) = Monitor::of_other_processes() else { return Ok(()) };
    let follow = move || {
        loop {
            follow(&mut monitor, &policies);
        }
    };
    std::thread::Builder::new().name("policy-drift".to_owned()).spawn(follow)?;
    Ok(())
}

/// Takes the next event.
#[expect(
    clippy::disallowed_methods,
    reason = "a socket that cannot be read has no event for the end of that"
)]
fn follow(monitor: &mut Monitor, policies: &Policies) {
    match monitor.next(WAIT) {
        Ok(Some(Event::Committed(commit))) => {
            let table = [decisions_table(), hosts_table()].into_iter().find(|table| commit.touches(table));
            if let Some(table) = table {
                tracing::warn!(process = %commit.process, pid = commit.pid, "another program changed table {table}; it is restored");
                policies.request(Request::Drifted);
            }
        }
        Ok(Some(Event::Overrun)) => policies.request(Request::Drifted),
        Ok(None) => {}
        Err(error) => {
            tracing::debug!(%error, "changes of nf_tables are not noticed for a moment");
            std::thread::sleep(RETRY);
        }
    }
}
