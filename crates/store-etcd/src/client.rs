//! Calls to the cluster: tries one member after another within a deadline, and never repeats a
//! request that must not be executed twice.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use russet_sync::Backoff;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use crate::auth::{Auth, Token};
use crate::failure::{Class, Effect, Failure};
use crate::members::{Connection, Members};
use crate::proto::kv_client::KvClient;
use crate::proto::lease_client::LeaseClient;
use crate::proto::watch_client::WatchClient;
use crate::{Reach, Settings, SettingsError};

/// A repeatable call gives up on a silent member after this fraction of its deadline, so that
/// another member can still answer in time.
const PATIENCE_PARTS: u32 = 3;
/// If all members refuse the connection and the cluster has never answered, calls fail after this
/// time: the cluster is more likely configured wrongly than restarting, and the caller should get
/// the reason soon. A cluster that has answered before is waited for until the deadline.
const FIRST_CONTACT: Duration = Duration::from_millis(600);
/// How many refused tokens in one call mean that the user itself is wrong.
const MAX_RENEWALS: u32 = 3;

/// The first pause: about the time that a follower needs to answer "no leader" and a local election
/// needs to progress.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause: an etcd election takes one to two seconds, and its end should be noticed
/// soon.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pauses of one call or one watch, for both engines.
pub(crate) fn backoff() -> Backoff {
    Backoff::new(PAUSE_MIN, PAUSE_MAX)
}

/// The state that all clones of an engine share.
pub(crate) struct Client {
    pub(crate) settings: Settings,
    pub(crate) members: Members,
    pub(crate) auth: Auth,
    pub(crate) reach: Reach,
}

/// A connection to one member, with the token for its requests.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) connection: Connection,
    pub(crate) token: Token,
}

// === impl Line ===

impl Line {
    /// For ranges. The list of blocks of a cluster exceeds gRPC's default limit of 4 MiB, and a
    /// page may contain one record of any size.
    pub(crate) fn kv(&self) -> KvClient<tonic::transport::Channel> {
        KvClient::new(self.connection.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn lease(&self) -> LeaseClient<tonic::transport::Channel> {
        LeaseClient::new(self.connection.channel.clone())
    }

    pub(crate) fn watch(&self) -> WatchClient<tonic::transport::Channel> {
        WatchClient::new(self.connection.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// A request with the token. A member without a leader refuses it at once (and ends it if it is
    /// a watch) instead of holding it.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token.value {
            metadata.insert("token", token.clone());
        }
        request
    }
}

// === impl Client ===

impl Client {
    pub(crate) fn new(settings: Settings) -> Result<Arc<Self>, SettingsError> {
        settings.check()?;
        let members = Members::new(&settings)?;
        let auth = Auth::new(&settings);
        Ok(Arc::new(Self { settings, members, auth, reach: Reach::default() }))
    }

    /// Connects and authenticates if necessary. A failure means that no request was sent.
    pub(crate) async fn line(&self) -> Result<Line, Failure> {
        self.open_line().await.inspect_err(|failure| self.reach.failed(failure))
    }

    async fn open_line(&self) -> Result<Line, Failure> {
        let connection = self.members.connection(&self.settings).await?;
        let timeout = self.member_timeout();
        let mut failure = match tokio::time::timeout(timeout, self.auth.token(&connection.channel)).await {
            Ok(Ok(token)) => return Ok(Line { connection, token }),
            Ok(Err(status)) => self.failure(&connection, &status),
            Err(_) => Failure::silence(self.members.endpoint(&connection), timeout),
        };
        if failure.class == Class::Ambiguous {
            failure.class = Class::NotDone;
        }
        self.members.leave(&connection, &failure).await;
        Err(failure)
    }

    pub(crate) fn failure(&self, connection: &Connection, status: &Status) -> Failure {
        Failure::of(self.members.endpoint(connection), status).shown(self.settings.cert.as_deref())
    }

    /// Applies the consequences of a failure to later calls.
    pub(crate) async fn learn(&self, line: &Line, failure: &Failure) {
        self.reach.failed(failure);
        match failure.class {
            Class::Token => self.auth.refused(&line.token).await,
            Class::NotDone | Class::Ambiguous | Class::Corrupt => {
                self.members.leave(&line.connection, failure).await;
            }
            _ => {}
        }
    }

    /// How long a member may be silent before a repeatable request is sent to another one.
    pub(crate) fn member_timeout(&self) -> Duration {
        self.settings.deadline / PATIENCE_PARTS
    }

    /// Asks one member after another until one answers, the deadline passes, or the request must
    /// not be repeated.
    pub(crate) async fn call<T, Answer>(
        &self,
        effect: Effect,
        ask: impl Fn(Line) -> Answer + Send,
    ) -> Result<T, Failure>
    where
        T: Send,
        Answer: Future<Output = Result<T, Status>> + Send,
    {
        let begun = Instant::now();
        let deadline = begun + self.settings.deadline;
        let mut backoff = backoff();
        let (mut tries, mut refusals) = (0, 0);
        let mut renewals = 0;
        let mut unknown = false;
        loop {
            tries += 1;
            let mut failure = match self.attempt(effect, deadline, &ask).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            renewals += u32::from(failure.class == Class::Token);
            failure.after_unknown = unknown;
            unknown |= failure.class == Class::Ambiguous;
            refusals = if failure.definite { refusals + 1 } else { 0 };
            let never_there = refusals >= self.members.count()
                && !self.members.has_answered()
                && begun.elapsed() >= FIRST_CONTACT;
            let hopeless = never_there
                || failure.class == Class::Token && (!self.auth.can_renew() || renewals > MAX_RENEWALS);
            if hopeless || !failure.class.worth_another_try(effect) {
                return Err(failure);
            }
            // Another member is tried at once; a pause is useful only after all members were tried.
            let pause = if tries % self.members.count() == 0 { backoff.pause() } else { Duration::ZERO };
            let pause = if self.members.has_answered() { pause } else { pause.min(FIRST_CONTACT / 4) };
            if Instant::now() + pause >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt<T, Answer>(
        &self,
        effect: Effect,
        deadline: Instant,
        ask: &(impl Fn(Line) -> Answer + Send),
    ) -> Result<T, Failure>
    where
        Answer: Future<Output = Result<T, Status>> + Send,
    {
        let line = match tokio::time::timeout_at(deadline, self.line()).await {
            Ok(line) => line?,
            Err(_) => {
                let reason = format!("no connection within {:?}", self.settings.deadline);
                return Err(Failure::unreachable("etcd", reason));
            }
        };
        // A request that must not be repeated is waited for until the deadline: giving up early
        // would only make its outcome unknown.
        let until = match effect {
            Effect::Once => deadline,
            Effect::Read | Effect::Idempotent => deadline.min(Instant::now() + self.member_timeout()),
        };
        let begun = Instant::now();
        let failure = match tokio::time::timeout_at(until, ask(line.clone())).await {
            Ok(Ok(answer)) => {
                self.reach.answered();
                self.members.set_answered();
                return Ok(answer);
            }
            Ok(Err(status)) => self.failure(&line.connection, &status),
            Err(_) => Failure::silence(self.members.endpoint(&line.connection), begun.elapsed()),
        };
        if !failure.transport {
            self.members.set_answered();
        }
        self.learn(&line, &failure).await;
        Err(failure)
    }
}
