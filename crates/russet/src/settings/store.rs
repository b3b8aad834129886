//! Determines the store and its credentials, with their sources.

use std::path::Path;

use russet_agent::{EtcdSettings, Secret, StoreLocation};

use super::calicoctl::Calicoctl;
use super::recorded::{self, Recorded};
use super::{File, Origin, SettingsError, absolute};
use crate::cli::store::LocationArgs;

/// The sources of a store's settings besides the arguments.
#[derive(Clone, Copy, Default)]
pub(super) struct Sources<'a> {
    pub recorded: Option<&'a Recorded>,
    pub file: Option<&'a File>,
    pub calicoctl: Option<CalicoctlSource<'a>>,
}

/// Reads the configuration of calicoctl.
pub(super) type CalicoctlSource<'a> = &'a dyn Fn() -> Result<Option<Calicoctl>, SettingsError>;

/// A store, its source, and each credential with its source.
pub(super) struct StoreSetting {
    pub location: StoreLocation,
    pub origin: Origin,
    pub credentials: Vec<Credential>,
}

/// A key, its value as it is recorded, and its source.
type Credential = (&'static str, String, Origin);

const CA_FILE: &str = "etcd_ca_file";
const CERT_FILE: &str = "etcd_cert_file";
const KEY_FILE: &str = "etcd_key_file";
const SERVER_NAME: &str = "etcd_server_name";
const USERNAME: &str = "etcd_username";
const PASSWORD_FILE: &str = "etcd_password_file";
/// The key of a record for a password in calicoctl's configuration: its value names that place,
/// since secrets are not recorded.
pub(super) const PASSWORD_PLACE: &str = "etcd_password_place";

/// The store of the first source that names one: the arguments, the agent's record, the file,
/// calicoctl's configuration. Each credential comes from the arguments, else from the source of the
/// store.
pub(super) fn location(args: &LocationArgs, mut sources: Sources<'_>) -> Result<StoreSetting, SettingsError> {
    let (location, origin) = named(args, &sources)?;
    // A record's credentials belong to the store that it names.
    sources.recorded = sources.recorded.filter(|recorded| recorded::is_same(&location, &recorded.store));
    let mut credentials = given(args, &sources)?;
    let StoreLocation::Etcd(settings) = location else {
        return match credentials.first() {
            Some((key, ..)) => Err(SettingsError::NotEtcd(key)),
            None => Ok(StoreSetting { location, origin, credentials }),
        };
    };
    let mut settings = *settings;
    let inherited = of_calicoctl(&settings, &origin);
    for (key, value, _) in &credentials {
        set(&mut settings, key, value)?;
    }
    let is_new = |one: &Credential| credentials.iter().all(|(key, ..)| *key != one.0);
    let inherited: Vec<_> = inherited.into_iter().filter(is_new).collect();
    credentials.extend(inherited);
    if settings.password.is_none()
        && let Some(recorded) = sources.recorded
    {
        settings.password = recorded_password(recorded, &sources)?;
    }
    settings.check()?;
    // The agent that recorded this store was allowed to send them.
    let is_allowed = args.allow_plaintext_credentials
        || sources.recorded.is_some()
        || sources.file.map_or(Ok(false), |file| file.flag("allow_plaintext_credentials"))?;
    if let Some(endpoint) = settings.plaintext_credentials().filter(|_| !is_allowed) {
        return Err(SettingsError::Plaintext(endpoint.to_owned()));
    }
    Ok(StoreSetting { location: StoreLocation::Etcd(Box::new(settings)), origin, credentials })
}

fn named(args: &LocationArgs, sources: &Sources<'_>) -> Result<(StoreLocation, Origin), SettingsError> {
    if let Some(store) = &args.store {
        return Ok((store.clone(), Origin::given("store", &args.variables)));
    }
    if let Some(recorded) = sources.recorded {
        return Ok((recorded.store.clone(), recorded.origin("store")));
    }
    if let Some(file) = sources.file
        && let Some(store) = file.parsed("store")?
    {
        return Ok((store, Origin::File(file.path.clone())));
    }
    if let Some(read) = sources.calicoctl
        && let Some(found) = read()?
    {
        return Ok((StoreLocation::Etcd(Box::new(found.settings)), found.origin));
    }
    Ok((StoreLocation::Embedded, Origin::Default))
}

/// The credentials in the arguments, the record or the file.
fn given(args: &LocationArgs, sources: &Sources<'_>) -> Result<Vec<Credential>, SettingsError> {
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let wanted = [
        (CA_FILE, path(&args.etcd_ca_file)),
        (CERT_FILE, path(&args.etcd_cert_file)),
        (KEY_FILE, path(&args.etcd_key_file)),
        (SERVER_NAME, args.etcd_server_name.clone()),
        (USERNAME, args.etcd_username.clone()),
        (PASSWORD_FILE, path(&args.etcd_password_file)),
    ];
    let mut credentials = Vec::new();
    for (key, given) in wanted {
        let found = match (given, sources.recorded, sources.file) {
            (Some(given), ..) => Some((given, Origin::given(key, &args.variables))),
            (None, Some(recorded), _) => {
                recorded.file().parsed::<String>(key)?.map(|text| (text, recorded.origin(key)))
            }
            (None, None, Some(file)) => {
                file.parsed::<String>(key)?.map(|text| (text, Origin::File(file.path.clone())))
            }
            (None, None, None) => None,
        };
        if let Some((value, origin)) = found {
            let is_path = key.ends_with("_file");
            let value = if is_path { absolute(Path::new(&value)).display().to_string() } else { value };
            credentials.push((key, value, origin));
        }
    }
    Ok(credentials)
}

fn set(settings: &mut EtcdSettings, key: &str, value: &str) -> Result<(), SettingsError> {
    match key {
        CA_FILE => settings.ca = Some(value.into()),
        CERT_FILE => settings.cert = Some(value.into()),
        KEY_FILE => settings.key = Some(value.into()),
        SERVER_NAME => settings.server_name = Some(value.to_owned()),
        USERNAME => settings.username = Some(value.to_owned()),
        _ => settings.password = Some(password(Path::new(value))?),
    }
    Ok(())
}

/// The credentials in calicoctl's configuration; the endpoints bring none from another source.
fn of_calicoctl(settings: &EtcdSettings, origin: &Origin) -> Vec<Credential> {
    let path =
        |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| absolute(path).display().to_string());
    let password = settings.password.as_ref().map(|_| origin.to_string());
    let all = [
        (CA_FILE, path(&settings.ca)),
        (CERT_FILE, path(&settings.cert)),
        (KEY_FILE, path(&settings.key)),
        (USERNAME, settings.username.clone()),
        (PASSWORD_PLACE, password),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?, origin.clone()))).collect()
}

/// The password from calicoctl's configuration, read again from the recorded place.
fn recorded_password(recorded: &Recorded, sources: &Sources<'_>) -> Result<Option<Secret>, SettingsError> {
    let Some(place) = recorded.file().parsed::<String>(PASSWORD_PLACE)? else { return Ok(None) };
    let found = sources.calicoctl.map_or(Ok(None), |read| read())?;
    match found.and_then(|found| found.settings.password) {
        Some(password) => Ok(Some(password)),
        None => {
            let reason = "the agent had etcd's password from there, and it is not there for this process; give --etcd-password-file to the agent";
            Err(SettingsError::Calicoctl { place, reason: reason.to_owned() })
        }
    }
}

fn password(path: &Path) -> Result<Secret, SettingsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| SettingsError::Read { path: path.display().to_string(), source })?;
    Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
}
