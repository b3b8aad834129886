//! `russet install`.

mod rollback;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use russet_agent::Paths;
use russet_cni_spec::ConfigList;
use serde::Serialize;

use super::Failure;
use crate::cli::install::{BIN_DIR, InstallArgs, MoreService};
use crate::install::{self, InstallError, Manifest, Plan, Service, Step, Wish};
use crate::output;

/// The result, for programs.
#[derive(Serialize)]
struct InstallReport<'a> {
    schema: u32,
    dry_run: bool,
    #[serde(flatten)]
    plan: &'a Plan,
}

/// How long the agent may take until pods can start: its store may be a slow cluster.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between two STATUS requests.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The plugin executable.
const PLUGIN: &str = "russet-cni";
/// Exists if systemd is running.
const SYSTEMD: &str = "/run/systemd/system";

pub fn run(args: InstallArgs) -> Result<(), Failure> {
    let mut manifest = Manifest::read(&args.root)?;
    if args.rollback {
        return rollback::run(&args, manifest);
    }
    let wish = wish(&args, &manifest)?;
    let plan = install::plan(&wish, &install::look(&wish)?)?;
    for warning in &plan.warnings {
        output::progress(&format!("warning: {warning}"));
    }
    if !args.dry_run {
        if manifest.add(&plan) {
            manifest.write(&wish.root)?;
        }
        let mut report_progress = |step: &Step| output::progress(&in_words(step));
        if !plan.keep.is_empty() {
            install::carry_out(&plan.keep, &mut report_progress)?;
            manifest.add_kept(&plan);
            manifest.write(&wish.root)?;
        }
        install::carry_out(&plan.steps, &mut report_progress)?;
        if args.start {
            start_agent(&wish, !args.no_agent)?;
        }
        install::carry_out(&plan.last, &mut report_progress)?;
        if std::mem::take(&mut manifest.unfinished) {
            manifest.write(&wish.root)?;
        }
        // Pods of kubelet's runtime need none of it.
        if args.start {
            for (service, what) in [(Service::Cri, "russet cri"), (Service::Flanneld, "russet flanneld")] {
                start_service(service, what, &wish, &args.services)?;
            }
        }
    }
    output::print_as(
        args.output.format,
        &InstallReport { schema: 1, dry_run: args.dry_run, plan: &plan },
        || for_people(&plan, &wish, &args),
    );
    Ok(())
}

fn wish(args: &InstallArgs, manifest: &Manifest) -> Result<Wish, InstallError> {
    if args.start && args.root != Path::new("/") {
        return Err(InstallError::StartElsewhere(args.root.clone()));
    }
    let below = |dir: &Path| args.root.join(dir.strip_prefix("/").unwrap_or(dir));
    let command = std::env::current_exe().map_err(|source| InstallError::Io {
        operation: "find",
        path: PathBuf::from("russet"),
        source,
    })?;
    let has_systemd = args.start || args.root != Path::new("/") || Path::new(SYSTEMD).is_dir();
    let unit_dir = below(&args.unit_dir);
    let own_conflist = args.conflist.as_deref().map(read_conflist).transpose()?;
    let was_installed = |service: &Service| manifest.files.contains(&unit_dir.join(service.unit()));
    let wanted = |service: &Service| match service {
        Service::Agent => !args.no_agent,
        other => is_named(*other, &args.services) || was_installed(other),
    };
    let services = Service::ALL.into_iter().filter(wanted);
    let (plugin, is_in_package) = plugin_of(&command);
    // An image, or another directory, gets copies.
    let is_packaged = is_in_package && args.root == Path::new("/") && args.bin_dir == Path::new(BIN_DIR);
    let own_dir = command.parent().filter(|_| is_packaged);
    Ok(Wish {
        root: args.root.clone(),
        in_place: args.in_place && args.root != Path::new("/"),
        bin_dir: own_dir.map_or_else(|| below(&args.bin_dir), Path::to_owned),
        cni_bin_dir: below(&args.cni_bin_dir),
        cni_conf_dir: (!args.no_conflist).then(|| below(&args.cni_conf_dir)),
        own_conflist,
        services: services.collect(),
        // Units of several roots on one machine would have the same names. The package has its own.
        unit_dir: (!args.no_unit && !args.in_place && has_systemd && !is_packaged).then_some(unit_dir),
        plugins: args.plugins.clone(),
        plugin,
        command,
        is_packaged,
    })
}

/// The plugin executable that belongs to the command, and whether both are of a .deb or .rpm, which has it away from PATH.
fn plugin_of(command: &Path) -> (PathBuf, bool) {
    let beside = command.with_file_name(PLUGIN);
    let prefix = command.parent().and_then(Path::parent);
    let packaged = prefix.map(|prefix| prefix.join("libexec/russet").join(PLUGIN));
    match packaged.filter(|path| path.is_file() && !beside.exists()) {
        Some(packaged) => (packaged, true),
        None => (beside, false),
    }
}

/// The name and the text of a network configuration, which has to be one that runtimes read.
fn read_conflist(path: &Path) -> Result<(String, String), InstallError> {
    let failed = |source| InstallError::Io { operation: "read", path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) if name.ends_with(".conflist") && ConfigList::parse(text.as_bytes()).is_ok() => {
            Ok((name.to_owned(), text))
        }
        _ => Err(InstallError::NotAConflist(path.to_owned())),
    }
}

/// Whether the command line names the service, and not only an earlier installation.
fn is_named(service: Service, named: &[MoreService]) -> bool {
    match service {
        Service::Agent => false,
        Service::Cri => named.contains(&MoreService::Cri),
        Service::Pod => named.contains(&MoreService::Pod),
        Service::Flanneld => named.contains(&MoreService::Flanneld),
    }
}

/// Has systemd read the units, start the agent if it is part of the installation, and waits until pods can start.
fn start_agent(wish: &Wish, with_agent: bool) -> Result<(), InstallError> {
    let agent = Service::Agent.unit();
    systemctl(&["daemon-reload"])?;
    if !with_agent {
        return Ok(());
    }
    systemctl(&["enable", agent])?;
    systemctl(&["restart", agent])?;
    output::progress("the agent was started; waiting until pods can start");
    wait_until_ready(&wish.cni_bin_dir)
}

/// The same with another daemon, if it was installed. It notifies systemd when it serves (Type=notify), so `systemctl` fails if it does not.
fn start_service(
    service: Service,
    what: &str,
    wish: &Wish,
    named: &[MoreService],
) -> Result<(), InstallError> {
    if !wish.services.contains(&service) {
        return Ok(());
    }
    let unit = service.unit();
    if is_named(service, named) {
        output::progress(&format!("{what} is started; waiting until it serves (`journalctl -u {unit}`)"));
        systemctl(&["enable", unit])?;
        return systemctl(&["restart", unit]);
    }
    // An operator who has stopped or disabled it since meant that.
    output::progress(&format!("{what} is started again if it runs; waiting until it serves"));
    systemctl(&["try-restart", unit])
}

/// Waits until STATUS succeeds, called through the plugin that was installed.
#[expect(
    clippy::disallowed_methods,
    reason = "no event announces the readiness of the agent to another process"
)]
fn wait_until_ready(cni_bin_dir: &Path) -> Result<(), InstallError> {
    let end = Instant::now() + READY_TIMEOUT;
    loop {
        match status(cni_bin_dir) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_not_yet) => std::thread::sleep(READY_POLL_INTERVAL),
        }
    }
}

fn status(cni_bin_dir: &Path) -> Result<(), InstallError> {
    let what = "ask the agent for its STATUS";
    let failed = |why: String| InstallError::Command { what: what.to_owned(), why };
    let mut plugin = Command::new(cni_bin_dir.join("russet"))
        .env("CNI_COMMAND", "STATUS")
        .env("CNI_PATH", cni_bin_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = plugin.stdin.take() {
        // A plugin that does not read its input reports the reason on its standard output.
        let _ = stdin.write_all(br#"{"cniVersion":"1.1.0","name":"russet","type":"russet"}"#);
    }
    let done = plugin.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    Err(failed(format!(
        "{}; `journalctl -u {}` may say more",
        String::from_utf8_lossy(&done.stdout).trim(),
        Service::Agent.unit()
    )))
}

fn systemctl(args: &[&str]) -> Result<(), InstallError> {
    let what = || format!("systemctl {}", args.join(" "));
    let done = Command::new("systemctl").args(args).stdin(Stdio::null()).output();
    let done = done.map_err(|error| InstallError::Command { what: what(), why: error.to_string() })?;
    if done.status.success() {
        return Ok(());
    }
    Err(InstallError::Command { what: what(), why: String::from_utf8_lossy(&done.stderr).trim().to_owned() })
}

fn for_people(plan: &Plan, wish: &Wish, args: &InstallArgs) -> String {
    if args.dry_run {
        return plan.all().map(|step| format!("{}\n", in_words(step))).collect();
    }
    let changes = plan.all().filter(|step| step.is_change()).count();
    let mut text = match changes {
        0 => "everything was in place\n".to_owned(),
        _ => "installed\n".to_owned(),
    };
    if let Some(next) = next_step(args, &startable_units(plan, wish, args)) {
        text.push_str(&format!("next: {next}\n"));
    }
    text
}

/// The command that is needed until pods can start. Only the root `/` has units of this system.
fn next_step(args: &InstallArgs, units: &[&str]) -> Option<String> {
    let units = units.join(" ");
    let (root, is_other) = (args.root.display(), args.root != Path::new("/"));
    match (is_other, units.is_empty()) {
        _ if args.start => None,
        (true, _) if args.in_place && !args.no_agent => Some(Paths::new(&args.root).command("agent")),
        (_, true) => None,
        (true, false) => Some(format!("systemctl --root={root} enable {units}")),
        (false, false) => Some(format!(
            "systemctl daemon-reload && systemctl enable --now {units} (or: russet install --start)"
        )),
    }
}

/// The units that are new, or a package's, and can be started as they are; a template's name lacks a pod's.
fn startable_units(plan: &Plan, wish: &Wish, args: &InstallArgs) -> Vec<&'static str> {
    let is_written = |unit: &str| {
        plan.steps.iter().any(|step| matches!(step, Step::Write { path, .. } if path.ends_with(unit)))
    };
    let is_packages =
        |service: &Service| wish.is_packaged && !args.no_unit && wish.services.contains(service);
    let services = [Service::Agent, Service::Cri, Service::Flanneld].into_iter();
    services.filter(|service| is_written(service.unit()) || is_packages(service)).map(Service::unit).collect()
}

fn in_words(step: &Step) -> String {
    match step {
        Step::Directory { path } => format!("make directory {}", path.display()),
        Step::Save { path, saved: second } | Step::Keep { path, kept: second } => {
            format!("keep {} as {}", path.display(), second.display())
        }
        Step::Discard { path } => format!("remove {}", path.display()),
        Step::Restore { from, path } => format!("put {} back as {}", from.display(), path.display()),
        Step::Copy { from, path } => format!("copy {} to {}", from.display(), path.display()),
        Step::Link { to, path } => format!("link {} to {}", path.display(), to.display()),
        Step::Write { path, .. } => format!("write {}", path.display()),
        Step::Leave { path, why } => format!("leave {}: {why}", path.display()),
    }
}
