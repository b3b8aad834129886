//! Pings that are sent meanwhile, by a thread of their own.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::super::matrix::Prober;
use super::super::ping::Pinger;
use super::super::report::PodReport;
use super::{DemoError, Interrupt};

/// Pings in progress.
pub struct Traffic<'scope> {
    shared: Arc<Shared>,
    sender: Option<ScopedJoinHandle<'scope, Result<Counted, std::io::Error>>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    answered: AtomicU32,
}

/// What came of them.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub sent: u32,
    pub lost: u32,
    pub longest_gap: Duration,
}

/// Between two pings.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long the last answers are awaited.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// How many further answers show that packets pass again.
const ANSWERS: u32 = 5;
/// How long that may take.
const RECOVERY_DEADLINE: Duration = Duration::from_secs(20);
/// How often the answers are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The identifier of these pings; those of the matrix are the pods' numbers.
const IDENT: u16 = 0xfa17;

// === impl Traffic ===

impl<'scope> Traffic<'scope> {
    /// Starts pings from a pod to an address.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        from: &PodReport,
        to: IpAddr,
    ) -> Result<Self, DemoError> {
        let pinger = Prober::open(from, IDENT)?.into_pinger(to);
        let pinger =
            pinger.ok_or_else(|| DemoError::Refused(format!("{} has no address for {to}", from.name)))?;
        let shared = Arc::new(Shared::default());
        let counted = Arc::clone(&shared);
        let sender = scope.spawn(move || send(pinger, to, &counted));
        Ok(Self { shared, sender: Some(sender) })
    }

    /// Whether pings are answered again before the deadline.
    pub fn is_answered_again(&self, interrupt: &Interrupt) -> Result<bool, DemoError> {
        let answered = || self.shared.answered.load(Ordering::Relaxed);
        let (before, began) = (answered(), Instant::now());
        while answered() < before.saturating_add(ANSWERS) {
            if began.elapsed() > RECOVERY_DEADLINE {
                return Ok(false);
            }
            interrupt.wait(LOOK_INTERVAL)?;
        }
        Ok(true)
    }

    /// Ends them.
    pub fn stop(&mut self) -> Result<Counted, DemoError> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let ended = self.sender.take().map(ScopedJoinHandle::join);
        match ended {
            Some(Ok(counted)) => counted.map_err(|source| DemoError::io("send pings", source)),
            _ => Err(DemoError::Refused("a thread of the demo died".to_owned())),
        }
    }
}

fn send(mut pinger: Pinger, to: IpAddr, shared: &Shared) -> Result<Counted, std::io::Error> {
    let (mut sent, mut answered) = (0, 0);
    let (mut last, mut longest_gap) = (Instant::now(), Duration::ZERO);
    let mut receive = |pinger: &Pinger, end: Instant| -> Result<(), std::io::Error> {
        while let Some((from, _)) = pinger.reply(end)? {
            if from == to {
                answered += 1;
                longest_gap = longest_gap.max(last.elapsed());
                last = Instant::now();
                shared.answered.store(answered, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    while !shared.is_over.load(Ordering::Relaxed) {
        let next = Instant::now() + INTERVAL;
        sent += 1;
        // A ping that cannot be sent is lost, too.
        let _ = pinger.request_from(to);
        receive(&pinger, next)?;
    }
    receive(&pinger, Instant::now() + LAST_ANSWERS)?;
    Ok(Counted { sent, lost: sent.saturating_sub(answered), longest_gap })
}
