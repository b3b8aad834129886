//! Resolves the names in EgressNetworkPolicies, and again when their addresses may have changed (policy.md section
//! 1.10). A name that cannot be resolved any more keeps its addresses.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::View;
use crate::dns::{Answer, Resolver};

/// The addresses of names that were resolved.
pub type Names = BTreeMap<Arc<str>, BTreeSet<Ipv4Addr>>;

/// Who is notified of what.
#[derive(Debug, Clone, Default)]
pub struct Notices {
    /// Objects or addresses in the view have changed.
    pub changed: Rc<Notify>,
    /// The names in the view may have changed.
    pub names: Rc<Notify>,
}

/// When each name is resolved next.
type Schedule = BTreeMap<Arc<str>, Instant>;
type Resolved = (Arc<str>, Result<Answer, String>);

/// How long addresses count at least and at most: a server may say 0, and a mistake there must not last for days.
const TTL_MIN: Duration = Duration::from_secs(5);
const TTL_MAX: Duration = Duration::from_secs(30 * 60);
/// The pause before a name that could not be resolved is tried again.
const RETRY: Duration = Duration::from_secs(30);
/// As many names are resolved at once.
const TOGETHER_MAX: usize = 16;
/// How long policies that name anything wait at the start for the first answers.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time to the next look if there is no name.
const IDLE: Duration = Duration::from_secs(3600);

/// Keeps the addresses of all names of `view` in it. Never returns.
pub async fn follow_names(resolv_conf: PathBuf, view: Rc<RefCell<View>>, notices: Notices) {
    let mut schedule = Schedule::new();
    let mut is_first = true;
    loop {
        let wanted = view.borrow().names();
        let Some(wanted) = wanted else {
            notices.names.notified().await;
            continue;
        };
        schedule.retain(|name, _| wanted.contains(name));
        view.borrow_mut().keep_names(&wanted);
        let now = Instant::now();
        let is_due = |name: &&Arc<str>| schedule.get(*name).is_none_or(|at| *at <= now);
        let due: Vec<Arc<str>> = wanted.iter().filter(is_due).cloned().collect();
        schedule.extend(due.iter().map(|name| (Arc::clone(name), now + RETRY)));
        let work = resolve_all(&resolv_conf, due, |resolved| take(resolved, &view, &mut schedule, &notices));
        match std::mem::take(&mut is_first) {
            true => drop(timeout(FIRST_TIMEOUT, work).await),
            false => work.await,
        }
        if view.borrow_mut().set_names_tried() {
            notices.changed.notify_one();
        }
        let next = schedule.values().min().copied();
        tokio::select! {
            () = sleep_until(next.unwrap_or(now + IDLE)) => {}
            () = notices.names.notified() => {}
        }
    }
}

/// Resolves all names in `view` once, for a verb that shows what they mean. Returns those that could not be, and why.
pub async fn resolve_names(resolv_conf: &Path, view: &mut View) -> BTreeMap<Arc<str>, String> {
    let wanted = view.names().unwrap_or_default();
    let late = || format!("no answer within {} s", FIRST_TIMEOUT.as_secs());
    let mut failed: BTreeMap<_, _> = wanted.iter().map(|name| (Arc::clone(name), late())).collect();
    let work = resolve_all(resolv_conf, wanted.into_iter().collect(), |(name, resolved)| {
        match resolved {
            Ok(answer) => {
                failed.remove(&name);
                view.set_name(name, answer.addresses);
            }
            Err(error) => _ = failed.insert(name, error),
        };
    });
    // What came until then counts.
    let _ = timeout(FIRST_TIMEOUT, work).await;
    view.set_names_tried();
    failed
}

/// Resolves names, a few at once, and hands over each as it comes.
async fn resolve_all(resolv_conf: &Path, names: Vec<Arc<str>>, mut take: impl FnMut(Resolved)) {
    if names.is_empty() {
        return;
    }
    let (mut names, mut tasks) = (names.into_iter(), JoinSet::<Resolved>::new());
    let resolver = Resolver::read(resolv_conf).map_err(|error| format!("{}: {error}", resolv_conf.display()));
    loop {
        for name in names.by_ref().take(TOGETHER_MAX.saturating_sub(tasks.len())) {
            let resolver = resolver.clone();
            tasks.spawn(async move {
                let resolved = match resolver {
                    Ok(resolver) => resolver.resolve(&name).await.map_err(|error| error.to_string()),
                    Err(error) => Err(error),
                };
                (name, resolved)
            });
        }
        match tasks.join_next().await {
            Some(Ok(resolved)) => take(resolved),
            // One that was interrupted is due again.
            Some(Err(_)) => {}
            None => return,
        }
    }
}

fn take((name, resolved): Resolved, view: &RefCell<View>, schedule: &mut Schedule, notices: &Notices) {
    let pause = match resolved {
        Ok(answer) => {
            if view.borrow_mut().set_name(Arc::clone(&name), answer.addresses) {
                notices.changed.notify_one();
            }
            answer.ttl.clamp(TTL_MIN, TTL_MAX)
        }
        Err(error) => {
            let what = match view.borrow().is_resolved(&name) {
                true => "a name in EgressNetworkPolicies cannot be resolved now, and keeps its addresses",
                false => {
                    "a name in EgressNetworkPolicies cannot be resolved: rules allow nothing by it, or deny everything"
                }
            };
            russet_store::refused(what, &name, error);
            RETRY
        }
    };
    schedule.insert(name, Instant::now() + pause);
}
