//! Images of containers for tests, as archives that `ctr images import` reads. No registry is needed.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::run;

/// The image of tests' pods and of their sandboxes: pod/main.rs.
pub const POD: &str = "registry.local/pause:1";
/// The source of its program.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pod/main.rs");

/// Makes the image [`POD`] in a directory; returns the archive.
pub fn pod(directory: &Path) -> PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    let program = directory.join("pod");
    let options = ["--edition=2024", "-Ctarget-feature=+crt-static", "-Cpanic=abort", "-Copt-level=1", "-o"];
    run("rustc", &[&options[..], &[text(&program), PROGRAM]].concat());
    archive(directory, POD, &[("bin/pod", &program)], &["/bin/pod"])
}

/// Makes Russet's image with the executables of this build in a directory; returns the archive.
#[track_caller]
pub fn russet(directory: &Path) -> PathBuf {
    // target/debug/deps/EXECUTABLE
    let executable = std::env::current_exe().unwrap();
    let xtask = executable.ancestors().nth(2).unwrap().join("xtask");
    assert!(xtask.is_file(), "{} is not there: `cargo build --workspace` builds it", xtask.display());
    let archive = directory.join("russet.tar");
    run(text(&xtask), &["image", "--debug-executables", "--output", text(&archive)]);
    archive
}

/// An image of programs, by their paths in it, in the format of `docker save`; returns the archive.
pub fn archive(directory: &Path, name: &str, programs: &[(&str, &Path)], entrypoint: &[&str]) -> PathBuf {
    let files = directory.join("layer");
    for (path, program) in programs {
        let path = files.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(program, &path).unwrap();
    }
    let (layer, archive) = (directory.join("layer.tar"), directory.join("image.tar"));
    run("tar", &["-C", text(&files), "-cf", text(&layer), "."]);
    let digest = run("sha256sum", &[text(&layer)]);
    let digest = digest.split_whitespace().next().unwrap();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": { "Entrypoint": entrypoint, "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
        "history": [{ "created": "1970-01-01T00:00:00Z" }],
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    std::fs::write(directory.join("manifest.json"), manifest.to_string()).unwrap();
    run("tar", &["-C", text(directory), "-cf", text(&archive), "config.json", "layer.tar", "manifest.json"]);
    archive
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
