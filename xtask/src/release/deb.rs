//! The .deb: an `ar` archive of a version, a compressed archive of control files, and one of the files (deb(5)).

use std::fmt::Write as _;
use std::path::Path;

use super::contents::{self, File, Inputs, Places, SETTINGS};
use super::{DESCRIPTION, REVISION, Release, SUMMARY, libraries, read, save};
use crate::artifacts;
use crate::error::Result;
use crate::process;
use crate::tar::Entry;

const PLACES: Places =
    Places { zsh: "usr/share/zsh/vendor-completions", license: "usr/share/doc/russet/copyright" };
/// What dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// The width of a description's line.
const LINE_MAX: usize = 78;

pub fn write(release: &Release, inputs: &Inputs, output: &Path) -> Result<String> {
    let files = contents::packaged(inputs, &PLACES, release.level)?;
    let name = format!("russet_{}-{REVISION}_{}.deb", release.version, release.architecture.deb);
    let control = archive(control(release, inputs, &files)?, release)?;
    let entry = |file: File| match file.is_link {
        true => Entry::link(&file.path, String::from_utf8_lossy(&file.content).into_owned()),
        false => Entry::file(&file.path, file.mode, file.content),
    };
    let data = files.into_iter().map(entry);
    let data = archive(data.collect(), release)?;
    let members = [("debian-binary", b"2.0\n".to_vec()), ("control.tar.gz", control), ("data.tar.gz", data)];
    save(output, &name, &ar(&members, release.seconds))
}

/// Entries below `./`, as dpkg-deb names them.
fn archive(entries: Vec<Entry>, release: &Release) -> Result<Vec<u8>> {
    let below = |entry: Entry| Entry { path: format!("./{}", entry.path), ..entry };
    super::archive(entries.into_iter().map(below).collect(), release)
}

fn control(release: &Release, inputs: &Inputs, files: &[File]) -> Result<Vec<Entry>> {
    let mut sums = String::new();
    for file in files.iter().filter(|file| !file.is_config && !file.is_link) {
        let sum = process::checksum("md5sum", &file.content)?;
        // Writing to a string cannot fail.
        let _ = writeln!(sums, "{sum}  {}", file.path);
    }
    let mut entries = vec![
        Entry::file("control", 0o644, fields(release, inputs, files)?.into_bytes()),
        Entry::file("conffiles", 0o644, format!("/{SETTINGS}\n").into_bytes()),
        Entry::file("md5sums", 0o644, sums.into_bytes()),
    ];
    for script in SCRIPTS {
        let text = read(&artifacts::workspace().join("packaging/deb").join(script))?;
        entries.push(Entry::file(script, 0o755, text));
    }
    Ok(entries)
}

fn fields(release: &Release, inputs: &Inputs, files: &[File]) -> Result<String> {
    let mut depends = Vec::new();
    if let Some(needs) = libraries::of([&inputs.russet, &inputs.russet_cni])? {
        depends.push(format!("libc6 (>= {}.{})", needs.glibc.0, needs.glibc.1));
        depends.extend(needs.libgcc.then(|| "libgcc-s1".to_owned()));
    }
    let kibibytes: usize = files.iter().map(|file| file.content.len().div_ceil(1024)).sum();
    let depends =
        if depends.is_empty() { String::new() } else { format!("Depends: {}\n", depends.join(", ")) };
    Ok(format!(
        "Package: russet\nVersion: {}-{REVISION}\nArchitecture: {}\nMaintainer: Russet maintainers <russet@localhost>\n\
         Installed-Size: {kibibytes}\n{depends}Section: net\nPriority: optional\nHomepage: {}\nDescription: {SUMMARY}\n{}",
        release.version,
        release.architecture.deb,
        env!("CARGO_PKG_REPOSITORY"),
        wrapped(DESCRIPTION)
    ))
}

/// Lines that begin with a blank, as a field's continuation does.
fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= LINE_MAX => *line = format!("{line} {word}"),
            _ => lines.push(format!(" {word}")),
        }
    }
    lines.join("\n") + "\n"
}

/// The common `ar` format, whose members begin at even offsets.
fn ar(members: &[(&str, Vec<u8>)], seconds: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, content) in members {
        archive.extend(
            format!("{name:<16}{seconds:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", content.len()).bytes(),
        );
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(2), b'\n');
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_begin_at_even_offsets_and_have_their_sizes() {
        let archive = ar(&[("a", b"odd".to_vec()), ("b", b"xy".to_vec())], 7);
        assert_eq!(archive.len(), 8 + 60 + 4 + 60 + 2);
        assert_eq!(&archive[8..24], b"a               ");
        assert_eq!(&archive[56..68], b"3         `\n");
        assert_eq!(&archive[72..74], b"b ");
    }

    #[test]
    fn a_description_is_a_field_with_short_continuations() {
        let text = wrapped(DESCRIPTION);
        assert!(text.lines().all(|line| line.len() <= LINE_MAX), "{text}");
        assert!(text.trim_start_matches('\n').lines().all(|line| line.starts_with(' ')), "{text}");
    }
}
