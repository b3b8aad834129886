//! `russet uninstall`.

use std::time::{Duration, Instant};

use russet_agent::Paths;
use russet_linux::LockError;
use serde::Serialize;

use super::Failure;
use crate::cli::owned::UninstallArgs;
use crate::install::Service;
use crate::output;
use crate::owned::pods::{Held, HoldError, Keeper};
use crate::owned::{self, Inventory};
use crate::uninstall::{self, Reach, Step};

/// What was removed, for programs.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    dry_run: bool,
    steps: &'a [&'a Step],
}

/// What keeps an uninstall from beginning, or from coming to its end.
#[derive(Debug, thiserror::Error)]
enum UninstallError {
    /// It would put everything back.
    #[error(
        "an agent runs on this node, or a request is under way ({0}); stop it first: systemctl stop {agent}",
        agent = Service::Agent.unit()
    )]
    AgentRuns(LockError),
    /// It may be making some at any time.
    #[error("sandboxes of this node are in somebody's hands ({source}): {remedy}")]
    KeeperRuns {
        /// How that ends.
        remedy: &'static str,
        /// What is held.
        source: LockError,
    },
    /// Somebody could begin to make some.
    #[error("nobody could be kept from making sandboxes: {0}")]
    Hold(#[source] HoldError),
    /// They would lose their network.
    #[error("{count} interfaces of pods are attached ({some}); delete the pods, or give --force")]
    PodsAttached {
        /// How many.
        count: usize,
        /// A few of them.
        some: String,
    },
    /// Their namespaces are mounted in what would be removed; or an earlier boot left their addresses to be given back.
    #[error("{count} sandboxes of ours are there, or wait to be taken down; remove them first: {remedy}")]
    Sandboxes {
        /// How many.
        count: usize,
        /// How.
        remedy: &'static str,
    },
    /// A dry run that found reasons.
    #[error("{0} reasons not to uninstall now, above; nothing was done")]
    WouldRefuse(usize),
    /// The rest is done.
    #[error("{0} of {1} steps failed; run it again when the reason is gone")]
    Failed(usize, usize),
}

/// A plugin that works without an agent takes this long at most for what has begun.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a dry run, which is not worth a long wait.
const GLANCE: Duration = Duration::from_secs(1);
/// Pods that are named when they are in the way.
const PODS_SHOWN: usize = 5;

/// Takes everything away, or says what it would.
pub fn run(args: UninstallArgs) -> Result<(), Failure> {
    let paths = Paths::new(&args.root);
    let reach = Reach { pods: args.force, state: args.purge };
    if args.dry_run {
        let unlocked = keepers(&paths, GLANCE).and_then(|held| Ok((held, alone(&paths, GLANCE)?)));
        let unlocked = unlocked.map(drop);
        let inventory = owned::look(&args.root, !args.files_only)?;
        let refusals = [unlocked, without_sandboxes(&inventory), free(&inventory, args.force)];
        let steps = uninstall::plan(&inventory, reach);
        print(&args, &steps.iter().collect::<Vec<_>>());
        let refusals: Vec<UninstallError> = refusals.into_iter().filter_map(Result::err).collect();
        refusals.iter().for_each(|error| output::progress(&format!("it would refuse: {error}")));
        return if refusals.is_empty() {
            Ok(())
        } else {
            Err(UninstallError::WouldRefuse(refusals.len()).into())
        };
    }
    // Whoever starts meanwhile waits for us, and finds nothing. Those who make sandboxes wait for the node's lock with theirs in hand.
    let mut held = keepers(&paths, PATIENCE)?;
    held.push(alone(&paths, PATIENCE)?);
    let inventory = owned::look(&args.root, !args.files_only)?;
    without_sandboxes(&inventory)?;
    free(&inventory, args.force)?;
    let steps = uninstall::plan(&inventory, reach);
    let mut failed = 0;
    for step in &steps {
        if let Err(error) = uninstall::carry_out(step) {
            output::progress(&format!("{step}: {error}"));
            failed += 1;
        }
    }
    // What was made for this alone is nothing to tell.
    let is_told =
        |step: &&Step| !matches!(step, Step::File(path) if held.iter().any(|held| held.has_made(path)));
    print(&args, &steps.iter().filter(is_told).collect::<Vec<_>>());
    drop(held);
    if failed > 0 {
        return Err(UninstallError::Failed(failed, steps.len()).into());
    }
    Ok(())
}

fn alone(paths: &Paths, timeout: Duration) -> Result<Held, UninstallError> {
    let mut held = Held::default();
    if paths.run_dir().is_dir() {
        held.take(paths.node_lock(), Instant::now() + timeout).map_err(UninstallError::AgentRuns)?;
    }
    Ok(held)
}

fn keepers(paths: &Paths, timeout: Duration) -> Result<Vec<Held>, UninstallError> {
    let hold = |keeper: Keeper| {
        // A command comes to its end; a server does not.
        let patience = if keeper == Keeper::Command { timeout } else { Duration::ZERO };
        keeper.lock(paths, Instant::now() + patience).map_err(|error| match error {
            HoldError::Lock(source) => UninstallError::KeeperRuns { remedy: keeper.end(), source },
            other => UninstallError::Hold(other),
        })
    };
    Keeper::ALL.into_iter().map(hold).collect()
}

fn without_sandboxes(inventory: &Inventory) -> Result<(), UninstallError> {
    for keeper in Keeper::ALL {
        let count = inventory.sandboxes.iter().filter(|(_, of)| *of == keeper).count();
        if count > 0 {
            return Err(UninstallError::Sandboxes { count, remedy: keeper.remedy() });
        }
    }
    Ok(())
}

fn free(inventory: &Inventory, force: bool) -> Result<(), UninstallError> {
    let pods: Vec<String> = inventory.pods().map(|link| link.mark.to_string()).collect();
    if pods.is_empty() || force {
        return Ok(());
    }
    let some =
        pods.iter().take(PODS_SHOWN).map(|alias| output::visible(alias)).collect::<Vec<_>>().join(", ");
    let some = if pods.len() > PODS_SHOWN { format!("{some}, ...") } else { some };
    Err(UninstallError::PodsAttached { count: pods.len(), some })
}

fn print(args: &UninstallArgs, steps: &[&Step]) {
    let report = Report { schema: 1, dry_run: args.dry_run, steps };
    output::print_as(args.output.format, &report, || {
        let lines: String =
            steps.iter().map(|step| format!("{}\n", output::visible(&step.to_string()))).collect();
        match (steps.len(), args.dry_run) {
            (0, _) => "nothing of Russet's is on this node\n".to_owned(),
            (count, true) => format!("{lines}{count} steps; nothing was done\n"),
            (count, false) => format!("{lines}{count} steps done\n"),
        }
    });
}
