//! `russet uninstall`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use russet_agent::Paths;
use russet_linux::LockError;
use serde::Serialize;

use super::Failure;
use crate::cli::owned::UninstallArgs;
use crate::install::Service;
use crate::output;
use crate::owned::pods::{HoldError, Keeper, KeeperLocks};
use crate::owned::{self, Inventory};
use crate::uninstall::{self, NodeObject, Options, Step};

/// What was removed, for programs.
#[derive(Serialize)]
struct UninstallReport<'a> {
    schema: u32,
    dry_run: bool,
    steps: &'a [&'a Step],
}

/// Why an uninstall does not start, or does not complete.
#[derive(Debug, thiserror::Error)]
enum UninstallError {
    /// An agent would restore everything.
    #[error("an agent runs on this node, or a request is in progress ({source}); stop it first: {remedy}")]
    AgentRuns {
        /// How to end it.
        remedy: String,
        source: LockError,
    },
    /// It may make sandboxes at any time.
    #[error("another program holds this node's sandboxes ({source}): {remedy}")]
    KeeperRuns {
        /// How to end it.
        remedy: String,
        source: LockError,
    },
    /// Another program could start to make sandboxes.
    #[error("sandboxes could not be locked against other programs: {0}")]
    Hold(#[source] HoldError),
    /// They would lose their network.
    #[error("{count} interfaces of pods are attached ({some}); delete the pods, or give --force")]
    PodsAttached {
        count: usize,
        /// A few of them.
        some: String,
    },
    /// Their namespaces are mounted in directories to be removed, or addresses from an earlier boot
    /// have to be released.
    #[error("{count} sandboxes of Russet are on this node; remove them first: {remedy}")]
    Sandboxes { count: usize, remedy: String },
    /// A dry run that found reasons to refuse.
    #[error("{0} reasons not to uninstall now, above; nothing was done")]
    WouldRefuse(usize),
    /// Some steps failed; all others are done.
    #[error("{0} of {1} steps failed; remove the reason and run it again")]
    Failed(usize, usize),
}

/// A plugin without an agent finishes its current request within this time.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a dry run, which should not wait long.
const DRY_RUN_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How many pods a refusal names.
const PODS_SHOWN: usize = 5;

/// Removes everything, or prints what it would remove.
pub fn run(args: UninstallArgs) -> Result<(), Failure> {
    if args.only_wait {
        let runtime = super::runtime()?;
        let stopped = runtime.block_on(async { super::stop_signal() })?;
        runtime.block_on(stopped);
        return Ok(());
    }
    let paths = Paths::new(&args.root);
    let reach = Options { pods: args.force, state: args.purge, node_object: node_object(&args) };
    if args.dry_run {
        let unlocked = keepers(&paths, DRY_RUN_LOCK_TIMEOUT)
            .and_then(|held| Ok((held, lock_node(&paths, DRY_RUN_LOCK_TIMEOUT)?)));
        let unlocked = unlocked.map(drop);
        let inventory = owned::look(&args.root, !args.files_only)?;
        let refusals = [unlocked, without_sandboxes(&paths, &inventory), free(&inventory, args.force)];
        note_flannel(&inventory);
        let steps = uninstall::plan(&inventory, &reach);
        print(&args, &steps.iter().collect::<Vec<_>>());
        let refusals: Vec<UninstallError> = refusals.into_iter().filter_map(Result::err).collect();
        refusals.iter().for_each(|error| output::progress(&format!("it would refuse: {error}")));
        return if refusals.is_empty() {
            Ok(())
        } else {
            Err(UninstallError::WouldRefuse(refusals.len()).into())
        };
    }
    // A program that starts meanwhile waits for these locks, and then finds nothing. Programs that
    // make sandboxes take their own lock before the node's, so this order is the same.
    let mut held = keepers(&paths, LOCK_TIMEOUT)?;
    held.push(lock_node(&paths, LOCK_TIMEOUT)?);
    let inventory = owned::look(&args.root, !args.files_only)?;
    without_sandboxes(&paths, &inventory)?;
    free(&inventory, args.force)?;
    note_flannel(&inventory);
    let steps = uninstall::plan(&inventory, &reach);
    let mut failed = 0;
    for step in &steps {
        if let Err(error) = uninstall::carry_out(step) {
            output::progress(&format!("{step}: {error}"));
            failed += 1;
        }
    }
    // Files that were made only for the locks are not reported.
    let is_reported =
        |step: &&Step| !matches!(step, Step::File(path) if held.iter().any(|held| held.has_made(path)));
    print(&args, &steps.iter().filter(is_reported).collect::<Vec<_>>());
    drop(held);
    if failed > 0 {
        return Err(UninstallError::Failed(failed, steps.len()).into());
    }
    Ok(())
}

/// A daemon would restore what is removed of it, and pods use it.
fn note_flannel(inventory: &Inventory) {
    if let Some((pid, name)) = &inventory.flannel.daemon {
        output::progress(&format!(
            "{name} runs (process {pid}): its devices, routes, rules and files stay; if it is Russet's, end it and run this again"
        ));
    }
}

fn node_object(args: &UninstallArgs) -> Option<Arc<NodeObject>> {
    let (access, name) =
        (args.kubernetes.clone()?, args.node_name.clone().or_else(|| args.earlier_node_name.clone())?);
    let kubeconfig = (access != Path::new("in-cluster")).then_some(access);
    Some(Arc::new(NodeObject { name, kubeconfig, purge: args.purge }))
}

fn lock_node(paths: &Paths, timeout: Duration) -> Result<KeeperLocks, UninstallError> {
    let mut held = KeeperLocks::default();
    if paths.run_dir().is_dir() {
        let runs = |source| UninstallError::AgentRuns { remedy: Service::Agent.end(paths), source };
        held.take(paths.node_lock(), Instant::now() + timeout).map_err(runs)?;
    }
    Ok(held)
}

fn keepers(paths: &Paths, timeout: Duration) -> Result<Vec<KeeperLocks>, UninstallError> {
    let hold = |keeper: Keeper| {
        // A command ends by itself; a server does not.
        let timeout = if keeper == Keeper::Command { timeout } else { Duration::ZERO };
        keeper.lock(paths, Instant::now() + timeout).map_err(|error| match error {
            HoldError::Lock(source) => UninstallError::KeeperRuns { remedy: keeper.end(paths), source },
            other => UninstallError::Hold(other),
        })
    };
    Keeper::ALL.into_iter().map(hold).collect()
}

fn without_sandboxes(paths: &Paths, inventory: &Inventory) -> Result<(), UninstallError> {
    for keeper in Keeper::ALL {
        let count = inventory.sandboxes.iter().filter(|(_, of)| *of == keeper).count();
        if count > 0 {
            return Err(UninstallError::Sandboxes { count, remedy: keeper.remedy(paths) });
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
    let report = UninstallReport { schema: 1, dry_run: args.dry_run, steps };
    output::print_as(args.output.format, &report, || {
        let lines: String =
            steps.iter().map(|step| format!("{}\n", output::visible(&step.to_string()))).collect();
        match (steps.len(), args.dry_run) {
            (0, _) => "Russet has nothing on this node\n".to_owned(),
            (count, true) => format!("{lines}{count} steps; nothing was done\n"),
            (count, false) => format!("{lines}{count} steps done\n"),
        }
    });
}
