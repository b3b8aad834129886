//! Packages for another architecture than this machine's: what has to be there to build its executables, and how they run here. Their manual
//! pages and completions come from the command itself, which an emulator runs: so a package that is made has a command that starts.

use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::{artifacts, elf};

/// Those for which packages are made.
const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];

/// An error that names everything that is missing for a target.
pub fn check(target: &str, is_built_here: bool) -> Result<()> {
    if !PROCESSORS.contains(&artifacts::processor(target)) {
        return Err(Error::Usage(format!(
            "--target {target}: packages are for {}",
            PROCESSORS.join(" and ")
        )));
    }
    let mut missing = Vec::new();
    let library = artifacts::standard_library(target)?;
    if is_built_here && !library.is_dir() {
        missing.push(format!("the standard library ({}; `rustup target add {target}`)", library.display()));
    }
    if artifacts::is_foreign(target)? {
        missing.extend(missing_programs(target, is_built_here, is_installed));
    }
    match missing.as_slice() {
        [] => Ok(()),
        missing => Err(Error::Found(format!(
            "packages for {target} cannot be made on this machine; missing here: {}",
            missing.join("; ")
        ))),
    }
}

fn missing_programs(target: &str, is_built_here: bool, is_installed: impl Fn(&str) -> bool) -> Vec<String> {
    let compiler = artifacts::cross_tool(target, "gcc");
    let emulator = emulator(artifacts::processor(target));
    let mut missing = Vec::new();
    if is_built_here && !is_installed(&compiler) {
        let package = compiler.strip_suffix("-gcc").unwrap_or(&compiler).replace('_', "-");
        missing.push(format!("the linker and C compiler {compiler} (Debian's package gcc-{package})"));
    }
    if !is_installed(&emulator) {
        missing.push(format!("the emulator {emulator} (Debian's package qemu-user-static)"));
    }
    missing
}

/// A command that runs an executable, by an emulator if it is of another architecture.
pub fn runs(executable: &Path, content: &[u8]) -> Result<Command> {
    let architecture =
        elf::architecture(content).map_err(|why| Error::Found(format!("{}: {why}", executable.display())))?;
    let processor = match architecture {
        "arm64" => "aarch64",
        _ => "x86_64",
    };
    if processor == std::env::consts::ARCH {
        return Ok(Command::new(executable));
    }
    let mut command = Command::new(emulator(processor));
    command.arg(executable);
    Ok(command)
}

fn emulator(processor: &str) -> String {
    format!("qemu-{processor}-static")
}

fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_for_another_architecture_is_named_with_its_package() {
        let target = "aarch64-unknown-linux-musl";
        let missing = missing_programs(target, true, |_| false).join("; ");
        for part in ["aarch64-linux-gnu-gcc (Debian's package gcc-aarch64-linux-gnu)", "qemu-aarch64-static"]
        {
            assert!(missing.contains(part), "{part}: {missing}");
        }
        let built_elsewhere = missing_programs(target, false, |program| !program.starts_with("qemu"));
        assert_eq!(built_elsewhere.len(), 1, "only what runs them: {built_elsewhere:?}");
        assert_eq!(missing_programs(target, true, |_| true), Vec::<String>::new());
        let error = check("riscv64gc-unknown-linux-gnu", true).unwrap_err().to_string();
        assert!(error.contains("x86_64 and aarch64"), "{error}");
    }

    #[test]
    fn an_emulator_runs_what_this_processor_cannot() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(runs(Path::new("/bin/x"), &own).unwrap().get_program(), "/bin/x");
        let mut other = own;
        other[18] = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
        let command = runs(Path::new("/bin/x"), &other).unwrap();
        assert!(command.get_program().to_string_lossy().starts_with("qemu-"), "{command:?}");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["/bin/x"]);
    }
}
