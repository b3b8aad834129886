//! `russet install --rollback`.

use std::path::Path;

use serde::Serialize;

use super::{in_words, systemctl, wait_until_ready};
use crate::cli::install::InstallArgs;
use crate::command::Failure;
use crate::install::{self, InstallError, Manifest, Service, Step};
use crate::output;

/// The result, for programs.
#[derive(Serialize)]
struct RollbackReport<'a> {
    schema: u32,
    dry_run: bool,
    steps: &'a [Step],
}

pub fn run(args: &InstallArgs, mut manifest: Manifest) -> Result<(), Failure> {
    if args.start && args.root != Path::new("/") {
        return Err(InstallError::StartElsewhere(args.root.clone()).into());
    }
    let steps = install::roll_back(&manifest)?;
    if !args.dry_run {
        manifest.unfinished = true;
        manifest.write(&args.root)?;
        install::carry_out(&steps, &mut |step| output::progress(&in_words(step)))?;
        (manifest.previous, manifest.unfinished) = (Vec::new(), false);
        manifest.write(&args.root)?;
        if args.start {
            restart(&manifest, args)?;
        }
    }
    output::print_as(
        args.output.format,
        &RollbackReport { schema: 1, dry_run: args.dry_run, steps: &steps },
        || for_people(&steps, args),
    );
    Ok(())
}

/// Restarts the services that run, with the executables and units that are in place now, and waits until pods can start if the agent is one.
fn restart(manifest: &Manifest, args: &InstallArgs) -> Result<(), InstallError> {
    let is_installed = |service: &Service| manifest.files.iter().any(|file| file.ends_with(service.unit()));
    systemctl(&["daemon-reload"])?;
    for service in [Service::Agent, Service::Cri, Service::Flanneld].into_iter().filter(is_installed) {
        output::progress(&format!("{} is started again if it runs", service.unit()));
        systemctl(&["try-restart", service.unit()])?;
        if service == Service::Agent && systemctl(&["is-active", "--quiet", service.unit()]).is_ok() {
            wait_until_ready(&args.cni_bin_dir)?;
        }
    }
    Ok(())
}

fn for_people(steps: &[Step], args: &InstallArgs) -> String {
    if args.dry_run {
        return steps.iter().map(|step| format!("{}\n", in_words(step))).collect();
    }
    let next = match args.root == Path::new("/") && !args.start {
        true => {
            "next: systemctl daemon-reload && systemctl try-restart russet-agent (or: russet install --rollback --start, which does both)\n"
        }
        false => "",
    };
    format!("the version before the last installation is in place again\n{next}")
}
