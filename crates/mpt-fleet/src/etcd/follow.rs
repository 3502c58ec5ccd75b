//! Follows the registry: reads everything, then each change, and begins again when something was missed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use super::{Error, EtcdClient, Item, Watched};

/// News of the registry.
#[derive(Debug)]
pub enum News {
    /// Everything, as it was at a revision.
    All(u64, Vec<Item>),
    /// Changes.
    Changes(Vec<Item>),
    /// The watch ended, for this reason. It begins again by itself.
    Ended(String),
}

/// Follows the registry until nobody receives the news. `again` ends a watch that does not report what is known to have
/// changed: the member that sends it may be separated from the others.
pub async fn follow(etcd: Arc<EtcdClient>, prefix: String, news: mpsc::Sender<News>, again: Arc<Notify>) {
    let mut complete_to = None;
    while !news.is_closed() {
        let ended = tokio::select! {
            ended = run(&etcd, &prefix, &news, &mut complete_to) => ended,
            () = again.notified() => {
                etcd.next_member();
                Error::Away("the watch does not report changes".into())
            }
        };
        if news.send(News::Ended(ended.to_string())).await.is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// Returns the reason for the end. `complete_to` is the revision up to which all changes were reported.
async fn run(etcd: &EtcdClient, prefix: &str, news: &mpsc::Sender<News>, complete_to: &mut Option<u64>) -> Error {
    let gone = || Error::Away("the program ends".into());
    loop {
        let from = match *complete_to {
            Some(revision) => revision,
            None => match etcd.get_all(prefix).await {
                Ok((revision, items)) => {
                    if news.send(News::All(revision, items)).await.is_err() {
                        return gone();
                    }
                    *complete_to = Some(revision);
                    revision
                }
                Err(error) => return error,
            },
        };
        let mut watch = match etcd.watch(prefix, from + 1).await {
            Ok(watch) => watch,
            Err(error) => return error,
        };
        loop {
            match watch.next().await {
                Ok(Watched::Changes(revision, items)) => {
                    if news.send(News::Changes(items)).await.is_err() {
                        return gone();
                    }
                    *complete_to = (*complete_to).max(Some(revision));
                }
                Ok(Watched::Compacted) => {
                    *complete_to = None;
                    break;
                }
                Err(error) => return error,
            }
        }
    }
}

/// Between the end of a watch and the next one.
const PAUSE: Duration = Duration::from_millis(200);
