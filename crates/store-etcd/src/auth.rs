//! Credentials: a token for user and password, fetched when first needed and again after a member
//! refused it.

use tokio::sync::Mutex;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::proto::AuthenticateRequest;
use crate::proto::auth_client::AuthClient;
use crate::{Secret, Settings};

/// The value of the `token` field of every request.
#[derive(Clone)]
pub(crate) struct Token {
    /// `None` if the cluster requires no user.
    pub(crate) value: Option<MetadataValue<Ascii>>,
    serial: u64,
}

/// The user, and the token in use.
pub(crate) struct Auth {
    user: Option<(String, Secret)>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    token: Option<Token>,
    serial: u64,
}

// === impl Auth ===

impl Auth {
    pub(crate) fn new(settings: &Settings) -> Self {
        let user = settings.username.clone().zip(settings.password.clone());
        Self { user, held: Mutex::new(Held::default()) }
    }

    /// Whether a refused token can be replaced.
    pub(crate) fn can_renew(&self) -> bool {
        self.user.is_some()
    }

    /// The token in use, or a new one. Concurrent callers wait for one request, because a server
    /// spends 0.1 s on each.
    pub(crate) async fn token(&self, channel: &Channel) -> Result<Token, Status> {
        let Some((name, password)) = &self.user else { return Ok(Token { value: None, serial: 0 }) };
        let mut held = self.held.lock().await;
        if let Some(token) = &held.token {
            return Ok(token.clone());
        }
        let value = authenticate(channel.clone(), name, password).await?;
        held.serial += 1;
        let token = Token { value, serial: held.serial };
        held.token = Some(token.clone());
        Ok(token)
    }

    /// A member refused `token`: the next call fetches a new one, unless another call has done so
    /// already.
    pub(crate) async fn refused(&self, token: &Token) {
        let mut held = self.held.lock().await;
        if held.token.as_ref().is_some_and(|held| held.serial == token.serial) {
            held.token = None;
        }
    }
}

async fn authenticate(
    channel: Channel,
    name: &str,
    password: &Secret,
) -> Result<Option<MetadataValue<Ascii>>, Status> {
    let request = AuthenticateRequest { name: name.to_owned(), password: password.reveal().to_owned() };
    match AuthClient::new(channel).authenticate(request).await {
        Ok(answer) => {
            let mut token: MetadataValue<Ascii> = answer
                .into_inner()
                .token
                .parse()
                .map_err(|_| Status::data_loss("the token holds bytes that no header can carry"))?;
            token.set_sensitive(true);
            Ok(Some(token))
        }
        // Authentication is not enabled on the cluster yet; requests without a token are refused
        // once it is.
        Err(status)
            if status.code() == Code::FailedPrecondition && status.message().contains("not enabled") =>
        {
            Ok(None)
        }
        Err(status) => Err(status),
    }
}
