//! The network configurations of a runtime's directory, in the order in which it takes them: the first
//! valid one by name is the network of all pods (kubernetes.md section 5.6).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// What libcni reads; other files are no configurations.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];
/// A larger file is no configuration.
const MAX_BYTES: u64 = 1 << 20;

/// One configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflist {
    /// The file's name.
    pub file: String,
    /// The network's name.
    pub network: String,
    /// Its plugins, in order.
    pub plugins: Vec<String>,
    /// The bridges that the plugins `bridge` and `flannel` make.
    pub bridges: Vec<String>,
}

/// The configurations of a directory, in the order of their files' names.
#[derive(Debug, Default)]
pub struct Conflists(Vec<Conflist>);

#[derive(Deserialize)]
struct NetworkConfig {
    #[serde(default)]
    name: String,
    #[serde(rename = "type")]
    plugin: Option<String>,
    #[serde(default)]
    plugins: Vec<NetworkConfig>,
    /// Of any form: what a plugin refuses is still a configuration.
    #[serde(default)]
    bridge: Value,
    #[serde(default)]
    delegate: Value,
}

/// The bridge of a configuration that names none (docs/plugins.md).
const DEFAULT_BRIDGE: &str = "cni0";

// === impl Conflists ===

impl Conflists {
    /// Reads a directory; one that does not exist has none. Files that are no configurations are
    /// skipped, as runtimes do.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let entries = match std::fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            entries => entries?,
        };
        let mut found = BTreeMap::new();
        for entry in entries {
            let path = entry?.path();
            let is_configuration = path.extension().is_some_and(|end| EXTENSIONS.iter().any(|it| end == *it));
            let is_small = std::fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_BYTES);
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            if let (true, true, Some(file)) = (is_configuration, is_small, name)
                && let Some(conflist) = parse(&file, &std::fs::read(&path).unwrap_or_default())
            {
                found.insert(file, conflist);
            }
        }
        Ok(Self(found.into_values().collect()))
    }

    pub fn all(&self) -> &[Conflist] {
        &self.0
    }

    /// The first configuration, and that of a plugin which it hides.
    pub fn hidden(&self, plugin: &str) -> Option<(&Conflist, &Conflist)> {
        let names = |conflist: &&Conflist| conflist.plugins.iter().any(|name| name == plugin);
        let first = self.0.first().filter(|first| !names(first))?;
        Some((first, self.0.iter().find(names)?))
    }
}

fn parse(file: &str, text: &[u8]) -> Option<Conflist> {
    let config: NetworkConfig = serde_json::from_slice(text).ok()?;
    let of_plugins: Vec<&NetworkConfig> = std::iter::once(&config).chain(&config.plugins).collect();
    let plugins: Vec<String> = of_plugins.iter().filter_map(|config| config.plugin.clone()).collect();
    let bridges = of_plugins.iter().filter_map(|config| config.bridge()).map(str::to_owned).collect();
    let is_configuration = !plugins.is_empty();
    let network = config.name;
    is_configuration.then(|| Conflist { file: file.to_owned(), network, plugins, bridges })
}

// === impl NetworkConfig ===

impl NetworkConfig {
    /// The bridge that its plugin makes, also by its delegate.
    fn bridge(&self) -> Option<&str> {
        let name = match self.plugin.as_deref()? {
            "bridge" => &self.bridge,
            "flannel" if self.delegate.get("type").is_none_or(|kind| kind == "bridge") => {
                self.delegate.get("bridge").unwrap_or(&Value::Null)
            }
            _ => return None,
        };
        Some(name.as_str().filter(|name| !name.is_empty()).unwrap_or(DEFAULT_BRIDGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_configuration_by_name_hides_the_others() {
        // kubernetes.md K98
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        let hidden = || {
            let conflists = Conflists::read(directory.path()).unwrap();
            conflists.hidden("russet").map(|(first, ours)| (first.file.clone(), ours.file.clone()))
        };
        assert!(Conflists::read(&directory.path().join("missing")).unwrap().all().is_empty());
        write("10-russet.conflist", r#"{"name":"russet","plugins":[{"type":"russet"},{"type":"portmap"}]}"#);
        write("20-flannel.conflist", r#"{"name":"cbr0","plugins":[{"type":"flannel"}]}"#);
        assert_eq!(hidden(), None, "later ones are not used");
        write("00-broken.conflist", "{");
        write("00-empty.conflist", r#"{"name":"x","plugins":[]}"#);
        write("00-notes.txt", r#"{"name":"x","type":"bridge"}"#);
        assert_eq!(hidden(), None, "runtimes skip these");
        write("10-calico.conflist", r#"{"name":"k8s-pod-network","plugins":[{"type":"calico"}]}"#);
        let both = Some(("10-calico.conflist".to_owned(), "10-russet.conflist".to_owned()));
        assert_eq!(hidden(), both);
        write("05-lo.conf", r#"{"name":"x","type":"bridge"}"#);
        assert_eq!(hidden().unwrap().0, "05-lo.conf");
    }

    #[test]
    fn the_bridges_of_configurations_are_those_that_their_plugins_make() {
        let bridges = |text: &str| parse("f", text.as_bytes()).map(|conflist| conflist.bridges);
        let of_plugins =
            |plugins: &str| bridges(&format!(r#"{{"name":"x","plugins":[{plugins}]}}"#)).unwrap();
        assert_eq!(of_plugins(r#"{"type":"bridge","bridge":"br7"},{"type":"portmap"}"#), ["br7"]);
        assert_eq!(of_plugins(r#"{"type":"bridge"},{"type":"bridge","bridge":7}"#), ["cni0", "cni0"]);
        assert_eq!(of_plugins(r#"{"type":"flannel"}"#), ["cni0"]);
        assert_eq!(of_plugins(r#"{"type":"flannel","delegate":{"bridge":"br8"}}"#), ["br8"]);
        assert!(of_plugins(r#"{"type":"flannel","delegate":{"type":"ptp"}},{"type":"macvlan"}"#).is_empty());
        assert_eq!(bridges(r#"{"name":"x","type":"bridge","bridge":"br9"}"#).unwrap(), ["br9"]);
    }
}
