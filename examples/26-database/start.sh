# What the server runs. The image executes its scripts only if there are no data, and the last one says that all have
# succeeded: without this, it would serve an incomplete restore after its next start.
if [ -e "$PGDATA/PG_VERSION" ] && [ ! -e "$PGDATA/complete" ]; then
  echo "The first start has failed, so the data are incomplete. Delete the claim of the data to try again."
  exit 1
fi
echo 'touch "$PGDATA/complete"' > /docker-entrypoint-initdb.d/zz-last.sh
exec docker-entrypoint.sh postgres
