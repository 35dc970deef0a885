#!/bin/sh
# Publish a page, one at a time, from cron, CI or by hand. Ends with 0 if somebody else is at it.
exec lockstead run --timeout 0 --conflict-exit-code 0 sqlite:///locks.db#page -- sh -eu -c '
    date > "page-$LOCKSTEAD_TOKEN"
    ln -sfn "page-$LOCKSTEAD_TOKEN" page
'
