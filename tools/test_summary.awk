# Reads CTest's LastTest.log files, shows what failing cases printed, and ends with the line "N passed, N failed[, N skipped]".
# A case that began and never ended (a crash, a time limit) counts as failed, and so does a binary that failed without naming a case.
# A binary in a file named tests-again.log counts by that second run; what failed in its first run is listed as NOT STEADY.
function close_case(what) {
  if (running != "") {
    note_failure(running " (" what ")", output)
    running = ""
  }
}
function not_run() { return due > seen ? "; " due - seen " more not run" : "" }
function note_failure(name, text) {
  failures[++noted] = name
  details[noted] = text
  run_of[noted] = binary
  failed_in[binary]++
}
function count_again(   i) {
  for (i = 1; i <= noted; i++) if (run_of[i] == binary) unsteady[i] = 1
  for (i = 1; i <= skipped; i++) if (skipped_by[i] == binary) delete skips[i]
  failed_in[binary] = passed_in[binary] = 0
}
/^[0-9]+\/[0-9]+ Testing: / {
  room = $3
  split(FILENAME, parts, "/")
  folder = parts[length(parts) - 1]
  binary = folder " " room
  if (FILENAME ~ /tests-again\.log$/) count_again()
  failed_before = failed_in[binary]
  seen = due = 0
  output = ""
}
/^\[==========\] Running [0-9]+ test/ { due = $3 }
/^\[ RUN      \] / {
  close_case("did not end")
  running = folder " " room "/" $4
  output = ""
  seen++
  next
}
/^\[       OK \] / { passed_in[binary]++; running = ""; next }
/^\[  SKIPPED \] .* \([0-9]+ ms\)$/ {
  if (running != "") {
    skipped++
    reason = output
    gsub(/\n/, " ", reason)
    skips[skipped] = running ": " reason
    skipped_by[skipped] = binary
    running = ""
  }
  next
}
/^\[  FAILED  \] .* \([0-9]+ ms\)$/ {
  if (running != "") note_failure(running, output)
  running = ""
  next
}
/^Test (Passed|Failed)\.$/ {
  if (running != "") {
    close_case("ended the process" not_run())
  } else if ($2 == "Failed." && failed_in[binary] == failed_before) {
    note_failure(folder " " room " (failed without naming a case)", output)
  }
  next
}
/^Test time = |^<end of output>$|^----------+$/ { next }
{ if (length(output) < 20000) output = output $0 "\n" }
END {
  for (name in passed_in) passed += passed_in[name]
  for (i = 1; i <= noted; i++) {
    if (!(i in unsteady)) failed++
    printf "\n--- %s%s\n%s", failures[i], i in unsteady ? " (first run)" : "", details[i]
  }
  if (length(skips)) print ""
  for (i = 1; i <= skipped; i++) if (i in skips) print "skipped: " skips[i]
  if (noted) print ""
  for (i = 1; i <= noted; i++) if (i in unsteady) print "NOT STEADY: " failures[i] "; its binary ran again"
  for (i = 1; i <= noted; i++) if (!(i in unsteady)) print "FAILED: " failures[i]
  if (passed + failed == 0) print "no test ran"
  printf "%d passed, %d failed%s\n", passed, failed, length(skips) ? ", " length(skips) " skipped" : ""
  exit (failed > 0 || passed == 0)
}
