// Counts the shown times on, between two events of the server.
"use strict";
