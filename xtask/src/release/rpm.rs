//! The .rpm: a lead, a header of checksums, the header, and a compressed cpio archive ("RPM Package File Structure", format version 4).

mod cpio;
mod header;

use std::path::Path;

use super::contents::{self, File, Inputs, Places};
use super::{DESCRIPTION, REVISION, Release, SUMMARY, gzip, libraries, read, save};
use crate::artifacts;
use crate::error::{Error, Result};
use crate::process;
use header::{Header, Value};

const PLACES: Places =
    Places { zsh: "usr/share/zsh/site-functions", license: "usr/share/licenses/russet/LICENSE" };
/// The directories that go with the files: Russet's own, and those of shells and of netavark, which may not be installed, which several packages may have.
const DIRECTORIES: [&str; 10] = [
    "etc/russet",
    "usr/libexec/netavark",
    "usr/libexec/russet",
    "usr/share/doc/russet",
    "usr/share/doc/russet/docs",
    "usr/share/fish",
    "usr/share/fish/vendor_completions.d",
    "usr/share/licenses/russet",
    "usr/share/zsh",
    "usr/share/zsh/site-functions",
];
/// What rpm runs: the file in packaging/rpm, the tag of the script, and that of its interpreter.
const SCRIPTS: [(&str, u32, u32); 3] = [("post", 1024, 1086), ("preun", 1025, 1087), ("postun", 1026, 1088)];
const SHELL: &str = "/bin/sh";

/// The types of files in modes, and the bits that have them.
const TYPE: u32 = 0o170_000;
const LINK: u32 = 0o120_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
/// Flags of files (rpmfiles.h).
const CONFIG_NOREPLACE: u32 = 1 | 1 << 4;
const DOC: u32 = 1 << 1;
const LICENSE: u32 = 1 << 7;
/// Flags of dependencies (rpmds.h).
const EQUAL: u32 = 8;
const AT_LEAST: u32 = 4 | EQUAL;
/// What the reading rpm has to know itself.
const OF_RPM: u32 = 1 << 24 | 2 | EQUAL;
const SHA256: u32 = 8;

/// A file, link or directory of the package.
struct Item {
    path: String,
    mode: u32,
    /// Of a link, its target.
    content: Vec<u8>,
    flags: u32,
}

pub fn write(release: &Release, inputs: &Inputs, output: &Path) -> Result<String> {
    let items = items(contents::packaged(inputs, &PLACES, release.level)?);
    let payload = cpio::archive(&items, release.seconds);
    let payload_bytes = payload.len();
    let payload = gzip(payload, release.level)?;
    let mut header = Header::default();
    describe(&mut header, release, &items);
    scripts(&mut header)?;
    dependencies(&mut header, release, inputs)?;
    files(&mut header, &items, release.seconds)?;
    header.text(1124, "cpio");
    header.text(1125, "gzip");
    header.text(1126, "9");
    header.add(5092, Value::Texts(vec![process::checksum("sha256sum", &payload)?]));
    header.add(5093, Value::Int32(vec![SHA256]));
    let header = header.bytes(header::IMMUTABLE);
    let mut package = lead(release);
    package.extend(signature(&header, &payload, payload_bytes)?);
    package.extend(header);
    package.extend(payload);
    save(output, &format!("{}.{}.rpm", full_name(release), release.architecture.rpm), &package)
}

fn full_name(release: &Release) -> String {
    format!("russet-{}-{REVISION}", release.version)
}

fn items(files: Vec<File>) -> Vec<Item> {
    let flags = |file: &File| match file.path.as_str() {
        _ if file.is_config => CONFIG_NOREPLACE,
        path if path == PLACES.license => LICENSE,
        path if path.starts_with("usr/share/doc/") || path.starts_with("usr/share/man/") => DOC,
        _ => 0,
    };
    let item = |file: File| Item {
        mode: if file.is_link { LINK } else { REGULAR } | file.mode,
        flags: flags(&file),
        path: file.path,
        content: file.content,
    };
    let mut items: Vec<Item> = files.into_iter().map(item).collect();
    let directory =
        |path: &str| Item { path: path.to_owned(), mode: DIRECTORY | 0o755, content: Vec::new(), flags: 0 };
    items.extend(DIRECTORIES.map(directory));
    items.sort_by(|a, b| a.path.cmp(&b.path));
    items
}

/// The lead, which only `file` and old tools read.
fn lead(release: &Release) -> Vec<u8> {
    const LEAD_BYTES: usize = 96;
    const NAME_AT: usize = 10;
    const NAME_BYTES: usize = 66;
    // Magic number, version 3.0, binary.
    let mut lead = vec![0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0];
    lead.extend(release.architecture.rpm_number.to_be_bytes());
    lead.extend(full_name(release).bytes().take(NAME_BYTES - 1));
    lead.resize(NAME_AT + NAME_BYTES, 0);
    // Linux; the next part is a header.
    lead.extend([0, 1, 0, 5]);
    lead.resize(LEAD_BYTES, 0);
    lead
}

/// Checksums of what follows. Nothing is signed.
fn signature(header: &[u8], payload: &[u8], payload_bytes: usize) -> Result<Vec<u8>> {
    let both = [header, payload].concat();
    let mut signature = Header::default();
    signature.text(269, &process::checksum("sha1sum", header)?);
    signature.text(273, &process::checksum("sha256sum", header)?);
    signature.add(1000, Value::Int32(vec![size(both.len())?]));
    signature.add(1004, Value::Binary(binary(&process::checksum("md5sum", &both)?)?));
    signature.add(1007, Value::Int32(vec![size(payload_bytes)?]));
    let mut bytes = signature.bytes(header::SIGNATURES);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    Ok(bytes)
}

fn size(bytes: usize) -> Result<u32> {
    u32::try_from(bytes)
        .map_err(|_| Error::Found("a package of 4 GiB needs another format of .rpm".to_owned()))
}

fn binary(digits: &str) -> Result<Vec<u8>> {
    let byte = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>();
    bytes.ok_or_else(|| Error::Found(format!("no checksum: {digits:?}")))
}

fn describe(header: &mut Header, release: &Release, items: &[Item]) {
    header.add(100, Value::Texts(vec!["C".to_owned()]));
    header.text(1000, "russet");
    header.text(1001, &release.version);
    header.text(1002, REVISION);
    header.add(1004, Value::Translated(SUMMARY.to_owned()));
    header.add(1005, Value::Translated(DESCRIPTION.to_owned()));
    header.add(1006, Value::Int32(vec![seconds(release.seconds)]));
    // The build machine's name would change the bytes.
    header.text(1007, "localhost");
    let total: usize = items.iter().map(|item| item.content.len()).sum();
    header.add(1009, Value::Int32(vec![u32::try_from(total).unwrap_or(u32::MAX)]));
    header.text(1014, env!("CARGO_PKG_LICENSE"));
    header.add(1016, Value::Translated("Unspecified".to_owned()));
    header.text(1020, env!("CARGO_PKG_REPOSITORY"));
    header.text(1021, "linux");
    header.text(1022, release.architecture.rpm);
    header.text(1044, &format!("{}.src.rpm", full_name(release)));
    header.text(1064, "4.14.0");
    header.text(5062, "utf-8");
}

fn scripts(header: &mut Header) -> Result<()> {
    for (name, script, interpreter) in SCRIPTS {
        let text = read(&artifacts::workspace().join("packaging/rpm").join(name))?;
        header.text(script, &String::from_utf8_lossy(&text));
        header.text(interpreter, SHELL);
    }
    Ok(())
}

fn dependencies(header: &mut Header, release: &Release, inputs: &Inputs) -> Result<()> {
    let own = format!("{}-{REVISION}", release.version);
    header.add(1047, Value::Texts(vec!["russet".to_owned()]));
    header.add(1112, Value::Int32(vec![EQUAL]));
    header.add(1113, Value::Texts(vec![own]));
    let mut required = vec![
        (SHELL.to_owned(), 0, String::new()),
        ("rpmlib(CompressedFileNames)".to_owned(), OF_RPM, "3.0.4-1".to_owned()),
        ("rpmlib(FileDigests)".to_owned(), OF_RPM, "4.6.0-1".to_owned()),
        ("rpmlib(PayloadFilesHavePrefix)".to_owned(), OF_RPM, "4.0-1".to_owned()),
    ];
    if let Some(needs) = libraries::of([&inputs.russet, &inputs.russet_cni])? {
        required.push(("glibc".to_owned(), AT_LEAST, format!("{}.{}", needs.glibc.0, needs.glibc.1)));
        required.extend(needs.libgcc.then(|| ("libgcc_s.so.1()(64bit)".to_owned(), 0, String::new())));
    }
    required.sort();
    header.add(1048, Value::Int32(required.iter().map(|(_, flags, _)| *flags).collect()));
    header.add(1050, Value::Texts(required.iter().map(|(_, _, version)| version.clone()).collect()));
    header.add(1049, Value::Texts(required.into_iter().map(|(name, _, _)| name).collect()));
    Ok(())
}

/// One value of each tag for each file, in the order of the archive.
fn files(header: &mut Header, items: &[Item], time: u64) -> Result<()> {
    let numbers = |of: &dyn Fn(&Item) -> u32| Value::Int32(items.iter().map(of).collect());
    let texts = |text: &str| Value::Texts(items.iter().map(|_| text.to_owned()).collect());
    let short = |of: &dyn Fn(&Item) -> u32| {
        Value::Int16(items.iter().map(|item| u16::try_from(of(item)).unwrap_or_default()).collect())
    };
    let mut directories: Vec<String> = items.iter().map(|item| item.divided().0).collect();
    directories.sort();
    directories.dedup();
    let place = |item: &Item| {
        let (directory, _) = item.divided();
        directories
            .iter()
            .position(|found| *found == directory)
            .and_then(|at| u32::try_from(at).ok())
            .unwrap_or_default()
    };
    let target = |item: &Item| match item.mode & TYPE {
        LINK => String::from_utf8_lossy(&item.content).into_owned(),
        _ => String::new(),
    };
    let digest = |item: &Item| match item.mode & TYPE {
        REGULAR => process::checksum("sha256sum", &item.content),
        _ => Ok(String::new()),
    };
    header.add(1028, numbers(&|item| u32::try_from(item.content.len()).unwrap_or(u32::MAX)));
    header.add(1030, short(&|item| item.mode));
    header.add(1033, short(&|_| 0));
    header.add(1034, numbers(&|_| seconds(time)));
    header.add(1035, Value::Texts(items.iter().map(digest).collect::<Result<_>>()?));
    header.add(1036, Value::Texts(items.iter().map(target).collect()));
    header.add(1037, numbers(&|item| item.flags));
    header.add(1039, texts("root"));
    header.add(1040, texts("root"));
    header.add(1045, numbers(&|_| u32::MAX));
    header.add(1095, numbers(&|_| 1));
    header.add(1096, Value::Int32((1..).take(items.len()).collect()));
    header.add(1097, texts(""));
    header.add(1116, numbers(&place));
    header.add(1117, Value::Texts(items.iter().map(|item| item.divided().1).collect()));
    header.add(1118, Value::Texts(directories));
    header.add(5011, Value::Int32(vec![SHA256]));
    Ok(())
}

/// rpm's times end in 2106.
fn seconds(seconds: u64) -> u32 {
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

// === impl Item ===

impl Item {
    /// The directory with its slashes, and the name.
    fn divided(&self) -> (String, String) {
        let (directory, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        (format!("/{directory}/"), name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_read_as_bytes() {
        assert_eq!(binary("00ff1a").unwrap(), [0, 255, 26]);
        assert!(binary("0").is_err() && binary("zz").is_err());
    }

    #[test]
    fn directories_are_in_the_package_and_settings_are_kept() {
        let file = |path: &str, is_config| File {
            path: path.to_owned(),
            mode: 0o644,
            content: Vec::new(),
            is_link: false,
            is_config,
        };
        let items = items(vec![file("etc/russet/russet.toml", true), file("usr/bin/russet", false)]);
        let directories: Vec<&str> = items
            .iter()
            .filter(|item| item.mode & TYPE == DIRECTORY)
            .map(|item| item.path.as_str())
            .collect();
        assert_eq!(directories, DIRECTORIES);
        let settings = items.iter().find(|item| item.path == "etc/russet/russet.toml").unwrap();
        assert_eq!((settings.flags, settings.divided().0.as_str()), (CONFIG_NOREPLACE, "/etc/russet/"));
    }
}
