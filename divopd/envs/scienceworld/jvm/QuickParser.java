import java.util.HashMap;
import java.util.Map;
import language.model.ActionExpr;
import language.model.ActionExprIdentifier;
import language.model.ActionExprOR;
import language.model.ActionRequestDef;
import language.model.ActionTrigger;
import scala.Option;
import scala.Tuple2;
import scala.Tuple4;
import scala.collection.Iterator;
import scala.collection.immutable.Set;
import scienceworld.actions.Action;
import scienceworld.input.InputParser;
import scienceworld.objects.agent.Agent;
import scienceworld.objects.portal.Portal;
import scienceworld.struct.EnvObject;
import scienceworld.tasks.goals.GoalSequence;
import scienceworld.tasks.goals.ObjMonitor;

/**
 * The game's own parser less work that cannot change its answer.
 *
 * <p>Whatever matches is matched by the parser above, on the same objects in the same order. Left out are lists of
 * objects that no action beginning like the input reads, and the longer names of things whose shortest do not fit.
 *
 * <p>QuickParser.class is this file, made with JDK 17's {@code javac --release 8 -g:none -cp scienceworld.jar}; a test
 * holds the two together. It must stay one class.
 */
public class QuickParser extends InputParser {
    private static final int MOST_NAMES = 100000;
    private static final Map<String, String> NAMES = new HashMap<>();

    private final ActionRequestDef[] definitions;

    public QuickParser(ActionRequestDef[] definitions) {
        super(definitions);
        this.definitions = definitions;
    }

    /** As above. A list of objects that nobody asks for is made of the agent's few things instead. */
    @Override
    public Tuple4<Object, String, String, Option<Action>> parse(
            String input,
            EnvObject room,
            EnvObject universe,
            Agent agent,
            ObjMonitor monitor,
            GoalSequence goals,
            EnvObject perspective) {
        String text = String.join(" ", InputParser.tokenize(input.toLowerCase()));
        boolean near = false;
        boolean anywhere = false;
        for (ActionRequestDef definition : definitions) {
            if (readsObjects(definition, text)) {
                near |= !definition.isOracleAction();
                anywhere |= definition.isOracleAction();
            }
        }
        return super.parse(
                input, near ? room : agent, anywhere ? universe : agent, agent, monitor, goals, perspective);
    }

    /** Whether one of its patterns names an object and does not fail at its first words. */
    private static boolean readsObjects(ActionRequestDef definition, String text) {
        for (Iterator<ActionTrigger> triggers = definition.triggers().iterator(); triggers.hasNext(); ) {
            boolean fits = true;
            boolean first = true;
            boolean names = false;
            for (Iterator<ActionExpr> parts = triggers.next().pattern().iterator(); parts.hasNext(); first = false) {
                ActionExpr part = parts.next();
                names |= part instanceof ActionExprIdentifier;
                if (first && part instanceof ActionExprOR) {
                    fits = begins(text, (ActionExprOR) part);
                }
            }
            if (fits && names) {
                return true;
            }
        }
        return false;
    }

    private static boolean begins(String text, ActionExprOR words) {
        for (Iterator<String> choices = words.orElements().iterator(); choices.hasNext(); ) {
            if (text.startsWith(choices.next())) {
                return true;
            }
        }
        return false;
    }

    /** As above. Each name of a thing is one of its shortest names, or that with " in ..." or " on ..." after it. */
    @Override
    @SuppressWarnings("unchecked")
    public Tuple2<Object, Tuple2<String, EnvObject>[]> matchObj(
            String text, EnvObject[] objects, EnvObject perspective) {
        EnvObject[] fitting = new EnvObject[objects.length];
        int count = 0;
        for (EnvObject object : objects) {
            Set<String> names =
                    object instanceof Portal ? ((Portal) object).getReferents(perspective) : object.getReferents();
            for (Iterator<String> each = names.iterator(); each.hasNext(); ) {
                if (text.startsWith(plain(each.next()))) {
                    fitting[count++] = object;
                    break;
                }
            }
        }
        return super.matchObj(text, java.util.Arrays.copyOf(fitting, count), perspective);
    }

    /** The name as the parser compares it: lower case, single blanks, no articles. */
    private static String plain(String name) {
        String found = NAMES.get(name);
        if (found == null) {
            if (NAMES.size() >= MOST_NAMES) {
                NAMES.clear();
            }
            found = String.join(" ", InputParser.tokenize(name.toLowerCase()));
            NAMES.put(name, found);
        }
        return found;
    }
}
