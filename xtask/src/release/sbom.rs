//! The list of what is compiled into the executables, in CycloneDX 1.5: each crate with its version, licence, checksum and dependencies. It is
//! what cargo says, without build scripts' and tests' dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::{read, save};
use crate::artifacts;
use crate::error::{Error, Result};
use crate::process;

/// The packages whose executables users get.
const ROOTS: [&str; 2] = ["russet", "russet-cni"];

/// Writes `russet-VERSION.cdx.json`.
pub fn write(version: &str, seconds: u64, output: &Path) -> Result<String> {
    let mut cargo = artifacts::cargo();
    cargo.args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        &artifacts::static_triple()?,
    ]);
    let metadata = process::output(&mut cargo)?;
    let metadata = serde_json::from_slice(&metadata)
        .map_err(|error| Error::Found(format!("cargo metadata: {error}")))?;
    let lock = read(&artifacts::workspace().join("Cargo.lock"))?;
    let checksums = checksums(&String::from_utf8_lossy(&lock))?;
    let document = document(&metadata, &checksums, version, seconds)?;
    let text = format!("{document:#}\n");
    save(output, &format!("russet-{version}.cdx.json"), text.as_bytes())
}

/// SHA-256 of the crates from a registry, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().map_err(|error| Error::Found(format!("Cargo.lock: {error}")))?;
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let text = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    Ok(packages
        .filter_map(|it| Some(((text(it, "name")?, text(it, "version")?), text(it, "checksum")?)))
        .collect())
}

fn document(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    version: &str,
    seconds: u64,
) -> Result<Value> {
    let packages: BTreeMap<&str, &Value> =
        array(&metadata["packages"]).filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let graph = graph(metadata);
    let roots = array(&metadata["packages"]).filter(|it| ROOTS.iter().any(|root| it["name"] == *root));
    let roots: Vec<&str> = roots.filter_map(|package| package["id"].as_str()).collect();
    if roots.len() != ROOTS.len() {
        return Err(Error::Found(format!("cargo metadata has no {}", ROOTS.join(" and "))));
    }
    let mut linked: BTreeSet<&str> = BTreeSet::new();
    let mut open = roots;
    while let Some(id) = open.pop() {
        if linked.insert(id) {
            open.extend(graph.get(id).into_iter().flatten());
        }
    }
    let mut components: Vec<Value> = Vec::new();
    let mut dependencies: Vec<Value> = Vec::new();
    for id in &linked {
        let Some(package) = packages.get(id) else { continue };
        components.push(component(package, checksums));
        let mut on: Vec<String> = graph
            .get(id)
            .into_iter()
            .flatten()
            .filter_map(|id| packages.get(id))
            .map(|it| purl(it))
            .collect();
        on.sort();
        dependencies.push(json!({ "ref": purl(package), "dependsOn": on }));
    }
    let by = |key: &'static str| move |value: &Value| value[key].as_str().unwrap_or_default().to_owned();
    components.sort_by_key(by("bom-ref"));
    dependencies.sort_by_key(by("ref"));
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": timestamp(seconds),
            "component": {
                "type": "application", "bom-ref": "russet", "name": "russet", "version": version,
                "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
                "externalReferences": [{ "type": "vcs", "url": env!("CARGO_PKG_REPOSITORY") }],
            },
        },
        "components": components, "dependencies": dependencies,
    }))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// What each package links, by identifiers.
fn graph(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let is_linked = |dependency: &&Value| array(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
    array(&metadata["resolve"]["nodes"])
        .filter_map(|node| {
            let dependencies = array(&node["deps"]).filter(is_linked);
            Some((node["id"].as_str()?, dependencies.filter_map(|it| it["pkg"].as_str()).collect()))
        })
        .collect()
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let mut component = json!({
        "type": "library", "bom-ref": purl(package), "name": text("name"), "version": text("version"),
        "purl": purl(package),
    });
    if let Some(license) = package["license"].as_str() {
        // Older crates write `/` for `OR`.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if let Some(checksum) = checksums.get(&(text("name"), text("version"))) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// The package's URL, by which vulnerability databases know it.
fn purl(package: &Value) -> String {
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    // `+` has a meaning of its own in URLs.
    format!("pkg:cargo/{}@{}", text("name"), text("version").replace('+', "%2B"))
}

/// RFC 3339, in UTC.
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Year, month and day of a day since 1970-01-01, in the Gregorian calendar: years are counted from March, so that the leap day is their last.
fn date(days: u64) -> (u64, u64, u64) {
    const TO_YEAR_0: u64 = 719_468;
    const OF_400_YEARS: u64 = 146_097;
    let days = days + TO_YEAR_0;
    let (era, of_era) = (days / OF_400_YEARS, days % OF_400_YEARS);
    let of_era_year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_era_year + of_era_year / 4 - of_era_year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + of_era_year + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_795_844_159), "2026-11-28T05:35:59Z");
    }

    #[test]
    fn what_is_linked_is_listed_and_what_only_builds_or_tests_is_not() {
        let package =
            |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0" });
        let dependency = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let names = ["russet", "russet-cni", "linked", "builds", "tests"];
        let metadata = json!({
            "packages": names.map(package),
            "resolve": { "nodes": [
                { "id": "russet", "deps": [dependency("linked", Value::Null), dependency("tests", json!("dev"))] },
                { "id": "linked", "deps": [dependency("builds", json!("build"))] },
                { "id": "russet-cni", "deps": [] }, { "id": "builds", "deps": [] }, { "id": "tests", "deps": [] },
            ] },
        });
        let lock = "[[package]]\nname = \"linked\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let document = document(&metadata, &checksums(lock).unwrap(), "1.2.3", 0).unwrap();
        let refs: Vec<&str> =
            array(&document["components"]).filter_map(|it| it["bom-ref"].as_str()).collect();
        assert_eq!(refs, ["pkg:cargo/linked@1.0.0", "pkg:cargo/russet-cni@1.0.0", "pkg:cargo/russet@1.0.0"]);
        assert_eq!(document["components"][0]["hashes"][0]["content"], "abc");
        assert_eq!(document["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["dependencies"][2]["dependsOn"], json!(["pkg:cargo/linked@1.0.0"]));
    }
}
