//! `cargo xtask image`: a container image of Russet as an OCI archive, without Docker: `ctr image import` and registries' tools (skopeo, crane) read it.
//!
//! The image has nothing but the executables `russet` and `russet-cni`, which need no dynamic linker. The same executables give the same bytes: entries are sorted and have one
//! time (SOURCE_DATE_EPOCH, or 1970) and one owner.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::prelude::{Long, ValueExt};
use serde_json::{Value, json};

use crate::artifacts::{self, Profile};
use crate::error::{Error, Result};
use crate::tar::{self, Entry};
use crate::{elf, process};

/// What the command line asks for.
#[derive(Default)]
pub struct Options {
    output: Option<PathBuf>,
    name: Option<String>,
    /// Those of `cargo build`, with the shared libraries that they need, for tests: the release build takes ten minutes.
    debug: bool,
    /// A directory with both executables, built elsewhere.
    executables: Option<PathBuf>,
}

/// What the image of one architecture is made from.
pub struct Contents {
    entries: Vec<Entry>,
    /// As OCI calls it.
    architecture: &'static str,
}

/// A blob's media type and digest, and the bytes themselves.
struct Blob {
    media_type: &'static str,
    digest: String,
    bytes: Vec<u8>,
}

const EXECUTABLES: [&str; 2] = ["russet", "russet-cni"];
/// In the image, and on nodes that are installed by hand.
const DIRECTORY: &str = "usr/local/bin";
/// No registry has Russet's image. A kubelet that does not find this name on its node asks no foreign registry for it.
const REPOSITORY: &str = "localhost/russet";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Growing past this is a decision: each node fetches it.
const LIMIT_BYTES: usize = 20_000_000;

/// Builds the archive; false if a release image is above its limit.
pub fn run(options: &Options) -> Result<bool> {
    let contents = options.contents()?;
    let name = options.name.clone().unwrap_or_else(|| format!("{REPOSITORY}:{VERSION}"));
    let level = if options.debug { "-1" } else { "-9" };
    let (archive, digest) = archive(vec![contents], &name, VERSION, time()?, level)?;
    let output =
        options.output.clone().unwrap_or_else(|| artifacts::target_dir().join("dist/russet-image.tar"));
    let failed = || Error::io(format!("write {}", output.display()));
    output.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed())?;
    fs::write(&output, &archive).map_err(failed())?;
    println!("{}: {name}, {} bytes, {digest}", output.display(), archive.len());
    let keeps = options.debug || archive.len() <= LIMIT_BYTES;
    if !keeps {
        eprintln!("xtask: the image is larger than {LIMIT_BYTES} bytes");
    }
    Ok(keeps)
}

/// The image of a release under its own name: one file for all architectures, of which a runtime takes its own.
pub fn release(
    contents: Vec<Contents>,
    version: &str,
    seconds: u64,
    level: &str,
) -> Result<(Vec<u8>, String)> {
    archive(contents, &format!("{REPOSITORY}:{}", tag(version)), version, seconds, level)
}

/// A version as a tag, which may have no `+` and no `~`.
fn tag(version: &str) -> String {
    version.replace(['+', '~'], "-")
}

/// The archive, and the digest by which registries and containerd know the image. With several architectures that is the digest of their index.
fn archive(
    architectures: Vec<Contents>,
    name: &str,
    version: &str,
    seconds: u64,
    level: &str,
) -> Result<(Vec<u8>, String)> {
    let mut blobs = BTreeMap::new();
    let mut manifests = Vec::new();
    for contents in architectures {
        let architecture = contents.architecture;
        let [layer, config, manifest] = image(contents, version, seconds, level)?;
        let mut described = manifest.descriptor();
        described["platform"] = json!({ "architecture": architecture, "os": "linux" });
        manifests.push(described);
        blobs.extend([layer, config, manifest].map(|blob| (blob.digest.clone(), blob)));
    }
    let mut top = match manifests.as_slice() {
        [one] => one.clone(),
        _ => {
            let index = Blob::of(Blob::INDEX, &index(&manifests))?;
            let described = index.descriptor();
            blobs.insert(index.digest.clone(), index);
            described
        }
    };
    let digest = top["digest"].as_str().unwrap_or_default().to_owned();
    let tag = name.rsplit_once(':').map_or(VERSION, |(_, tag)| tag);
    // containerd reads the first, and other tools the second.
    top["annotations"] =
        json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag });
    let mut entries = vec![
        Entry::directory("blobs"),
        Entry::directory("blobs/sha256"),
        Entry::file("index.json", 0o644, text(&index(&[top]))),
        Entry::file("oci-layout", 0o644, text(&json!({ "imageLayoutVersion": "1.0.0" }))),
    ];
    entries.extend(blobs.into_values().map(Blob::into_entry));
    Ok((tar::archive(entries, seconds)?, digest))
}

fn index(manifests: &[Value]) -> Value {
    json!({ "schemaVersion": 2, "mediaType": Blob::INDEX, "manifests": manifests })
}

/// The layer, the configuration and the manifest of one architecture.
fn image(contents: Contents, version: &str, seconds: u64, level: &str) -> Result<[Blob; 3]> {
    let plain = tar::archive(contents.entries, seconds)?;
    let diff_id = digest(&plain)?;
    // Without a name and a time in its header.
    let compressed = process::filter(Command::new("gzip").args(["-n", "-c", level]), plain)?;
    let layer = Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", compressed)?;
    let labels = json!({
        "org.opencontainers.image.title": "russet",
        "org.opencontainers.image.description": "Container networking: node agent, CNI plugins, flannel's daemon, controller",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
    });
    let config = json!({
        "architecture": contents.architecture, "os": "linux",
        "config": { "Entrypoint": ["/usr/local/bin/russet"], "Env": ["PATH=/usr/local/bin"], "Labels": labels },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    let config = Blob::of("application/vnd.oci.image.config.v1+json", &config)?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": Blob::MANIFEST,
        "config": config.descriptor(), "layers": [layer.descriptor()], "annotations": labels,
    });
    let manifest = Blob::of(Blob::MANIFEST, &manifest)?;
    Ok([layer, config, manifest])
}

/// The executables, and the directories that lead to them. `/tmp` is missing on purpose: nothing of Russet writes there.
fn contents(executables: &[PathBuf; 2], libraries: bool) -> Result<Contents> {
    let mut entries = Vec::new();
    let mut architecture = None;
    for (path, name) in executables.iter().zip(EXECUTABLES) {
        let content = read(path)?;
        let found = |why| Error::Found(format!("{}: {why}", path.display()));
        architecture = Some(elf::architecture(&content).map_err(found)?);
        if elf::interpreter(&content).map_err(found)?.is_some() && !libraries {
            return Err(Error::Found(format!(
                "{} needs a dynamic linker, and the image has none",
                path.display()
            )));
        }
        entries.push(Entry::file(&format!("{DIRECTORY}/{name}"), 0o755, content));
    }
    if libraries {
        for library in shared_libraries(executables)? {
            let path = library.to_string_lossy().trim_start_matches('/').to_owned();
            entries.push(Entry::file(&path, 0o755, read(&library)?));
        }
    }
    let parents: BTreeSet<String> = entries.iter().flat_map(|entry| parents(&entry.path)).collect();
    entries.extend(parents.iter().map(|path| Entry::directory(path)));
    Ok(Contents { entries, architecture: architecture.unwrap_or("amd64") })
}

fn parents(path: &str) -> Vec<String> {
    path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect()
}

/// What `ldd` names: libraries, and the dynamic linker.
fn shared_libraries(executables: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let listed = process::output(Command::new("ldd").args(executables))?;
    let listed = String::from_utf8_lossy(&listed);
    // The executables' own names end in a colon.
    let words = listed.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    let mut found: Vec<PathBuf> = words.map(PathBuf::from).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// The time of all entries.
fn time() -> Result<u64> {
    let Some(set) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(0) };
    let seconds = set.to_str().and_then(|text| text.parse().ok());
    seconds
        .ok_or_else(|| Error::Usage(format!("SOURCE_DATE_EPOCH is no number of seconds: {}", set.display())))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// As OCI writes digests.
fn digest(bytes: &[u8]) -> Result<String> {
    Ok(format!("sha256:{}", process::checksum("sha256sum", bytes)?))
}

// === impl Blob ===

impl Blob {
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";

    fn new(media_type: &'static str, bytes: Vec<u8>) -> Result<Self> {
        Ok(Self { media_type, digest: digest(&bytes)?, bytes })
    }

    fn of(media_type: &'static str, value: &Value) -> Result<Self> {
        Self::new(media_type, text(value))
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }

    fn into_entry(self) -> Entry {
        let path = format!("blobs/{}", self.digest.replacen(':', "/", 1));
        Entry::file(&path, 0o644, self.bytes)
    }
}

// === impl Options ===

impl Options {
    /// Reads what follows `image`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("output") => options.output = Some(parser.value()?.into()),
                Long("name") => options.name = Some(parser.value()?.string()?),
                Long("executables") => options.executables = Some(parser.value()?.into()),
                Long("debug-executables") => options.debug = true,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }

    fn contents(&self) -> Result<Contents> {
        let given =
            self.executables.clone().or_else(|| self.debug.then(|| artifacts::target_dir().join("debug")));
        match given {
            Some(directory) => Contents::of(&directory, self.debug),
            None => {
                let [russet, plugin] = EXECUTABLES;
                let executables = [
                    artifacts::statically(russet, Profile::Dist)?,
                    artifacts::statically(plugin, Profile::Dist)?,
                ];
                contents(&executables, false)
            }
        }
    }
}

// === impl Contents ===

impl Contents {
    /// From a directory with both executables; of a debug build with the shared libraries that these need.
    pub fn of(directory: &Path, is_debug: bool) -> Result<Self> {
        let executables = EXECUTABLES.map(|name| directory.join(name));
        if !is_debug {
            return contents(&executables, false);
        }
        let directory = artifacts::target_dir().join("tmp");
        fs::create_dir_all(&directory).map_err(Error::io(format!("create {}", directory.display())))?;
        let mut stripped = Vec::new();
        for (executable, name) in executables.iter().zip(EXECUTABLES) {
            // Two thirds of a debug build are for debuggers.
            let without = directory.join(format!("{name}-{}", std::process::id()));
            process::run(Command::new("strip").arg("-g").arg("-o").arg(&without).arg(executable))?;
            stripped.push(without);
        }
        let made = <[PathBuf; 2]>::try_from(stripped.clone())
            .map_err(|_| Error::Found("not two executables".to_owned()))
            .and_then(|stripped| contents(&stripped, true));
        stripped.iter().for_each(|path| drop(fs::remove_file(path)));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Contents {
        let own = std::env::current_exe().unwrap();
        contents(&[own.clone(), own], true).unwrap()
    }

    fn image(seconds: u64) -> (Vec<u8>, String) {
        archive(vec![own()], "localhost/russet:1", "1", seconds, "-1").unwrap()
    }

    #[test]
    fn the_same_executables_give_the_same_image_and_another_time_gives_another() {
        let (first, digest) = image(0);
        assert_eq!((first, digest.clone()), image(0));
        assert_ne!(digest, image(60).1);
        assert!(digest.starts_with("sha256:") && digest.len() == 71, "{digest}");
    }

    /// The JSON of a file in an archive, found by its path.
    fn json_of(archive: &[u8], path: &str) -> Value {
        let at = archive.chunks(512).position(|block| block.starts_with(path.as_bytes())).unwrap();
        let mut values = serde_json::Deserializer::from_slice(&archive[(at + 1) * 512..]).into_iter();
        values.next().unwrap().unwrap()
    }

    #[test]
    fn one_archive_has_the_images_of_several_architectures_behind_one_name() {
        let other = Contents { architecture: "other", ..own() };
        let (archive, digest) = release(vec![own(), other], "0.2.0~rc1", 0, "-1").unwrap();
        let top = json_of(&archive, "index.json");
        let [named] = top["manifests"].as_array().unwrap().as_slice() else { panic!("{top}") };
        assert_eq!(named["annotations"]["io.containerd.image.name"], "localhost/russet:0.2.0-rc1");
        assert_eq!((&named["mediaType"], &named["digest"]), (&json!(Blob::INDEX), &json!(digest)));
        let index = json_of(&archive, &format!("blobs/{}", digest.replacen(':', "/", 1)));
        let platforms: Vec<&Value> =
            index["manifests"].as_array().unwrap().iter().map(|it| &it["platform"]["architecture"]).collect();
        assert_eq!(platforms, [own().architecture, "other"]);
    }

    #[test]
    fn an_executable_that_needs_a_dynamic_linker_is_refused_without_its_libraries() {
        let own = std::env::current_exe().unwrap();
        let error = contents(&[own.clone(), own], false).err().unwrap().to_string();
        assert!(error.contains("needs a dynamic linker"), "{error}");
        let entries = self::own().entries;
        let has = |name: &str| entries.iter().any(|entry| entry.path.contains(name));
        assert!(has("usr/local/bin/russet-cni") && has("libc.so") && has("ld-linux"));
    }
}
